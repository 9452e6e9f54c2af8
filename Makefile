# Thin names over cargo; each does all the set-up it needs.

.PHONY: demo test check bench libtorch clean

CARGO := cargo
PYTHON := python3

# The main job on the embedded sample: FedAnchor against the anchors alone.
demo: libtorch
	$(CARGO) run --release -- run

# Everything that must hold: format, lints, documentation, every test.
test: libtorch
	$(PYTHON) -m unittest discover -s scripts -p 'test_*.py'
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items
	$(CARGO) test --workspace

# Licences, banned crates and spelling: needs cargo-deny and typos, and installs them if they are missing.
check:
	command -v cargo-deny > /dev/null || $(CARGO) install --locked cargo-deny@0.20.2
	command -v typos > /dev/null || $(CARGO) install --locked typos-cli@1.52.0
	cargo-deny check licenses bans sources
	typos

# The training step beside the same step in PyTorch, on the same cores.
bench: libtorch
	$(PYTHON) benches/step.py

# Fetches libtorch into the shared cache: CUDA=1 chooses the CUDA set, CUDA=0 the CPU set again.
libtorch:
	@command -v $(PYTHON) > /dev/null || { echo "error: $(PYTHON) is missing: install Python 3 with pip and run the same command again"; exit 1; }
	@$(PYTHON) scripts/libtorch.py $(if $(filter 1,$(CUDA)),--cuda) $(if $(filter 0,$(CUDA)),--cpu)

clean:
	$(CARGO) clean
