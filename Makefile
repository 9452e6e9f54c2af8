# Thin names over cargo; each does all the set-up it needs.

.PHONY: demo fleet requirements built test test-rust test-export test-fleet test-browser test-tensorboard test-python test-notebooks test-slow screenshots figures check docs fuzz fuzz-locked bench dist wheel libtorch trunks clean

CARGO := cargo
PYTHON := python3
# An error's own words come last, not the stack that it came through.
export RUST_LIB_BACKTRACE := 0
# A build from nothing takes longer if it prepares for small changes; cargo without make still does.
export CARGO_INCREMENTAL := 0

# The main job on the embedded sample: FedAnchor against the anchors alone.
demo: libtorch
	$(CARGO) run --locked --release -- run

# A fleet on this machine: Flower, three nodes and a coordinator, and the simulation of the same clients.
fleet: libtorch target/flower/ready
	$(CARGO) build --locked --release -p fedanchor-cli
	target/flower/bin/python scripts/fleet.py target/release/fedanchor

# A virtual environment with the packages that its list names, each with the hash of its files. The lists hold everything
# that is needed, so that nothing else is looked for; wheels only, since building a package would fetch tools without
# hashes.
PINNED := -m pip install --quiet --no-deps --only-binary=:all: --require-hashes --requirement
target/%/ready: requirements/%.txt
	$(PYTHON) -m venv target/$*
	target/$*/bin/python $(PINNED) $<
	touch $@

# Writes the lists again from the versions in requirements/*.in, with what these need and the hashes. TensorBoard's has
# only what reads event files, not its web server.
requirements: target/uv/ready
	for list in $(basename $(wildcard requirements/*.in)); do \
		target/uv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
			--custom-compile-command "make requirements" $$(test $$list != requirements/tensorboard || echo --no-deps) \
			$$list.in --output-file $$list.txt || exit 1; \
	done

# Pretrained networks for photographs (`model.trunk`).
trunks:
	$(PYTHON) scripts/trunks.py

# Everything that must hold: format, lints, documentation, every test. Checks that wait for servers and browsers run
# at the same time as the tests; each prints its output when it ends.
test: libtorch trunks
	$(PYTHON) -m unittest discover -s scripts -p 'test_*.py'
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items
	$(CARGO) test --locked --workspace --no-run
	$(MAKE) --jobs=2 --output-sync=target test-rust test-fleet test-export test-browser \
		test-tensorboard test-python

# The program and the examples as the tests have them: built alone, with fewer features, half of the crates would be
# compiled once more.
built: libtorch
	$(CARGO) test --locked --quiet --workspace --no-run

# After what `test` does before it; without prerequisites, so that it does not wait for those of the checks. One thread of
# libtorch for each test: tests run in parallel, and threads that wait for one another would take most of the
# time. The plus sign shows results as they come.
test-rust:
	+OMP_NUM_THREADS=1 $(CARGO) test --locked --workspace

# Compares exported models with the program's own outputs in onnxruntime, and the Python program in docs/pictures.md with
# `fedanchor predict`.
test-export: built target/onnx/ready
	target/debug/examples/cases target/exported
	target/onnx/bin/python scripts/check_export.py target/exported
	OMP_NUM_THREADS=1 target/onnx/bin/python scripts/check_predict.py target/debug/fedanchor
	rm -r target/exported

# The fleet on Flower, and the apps that carry its messages.
test-fleet: built target/flower/ready
	cd flower && ../target/flower/bin/python -m unittest tests/test_local.py
	target/flower/bin/python scripts/fleet.py target/debug/fedanchor

# The page of a report and the live view in a real browser.
test-browser: built target/browser/ready
	target/browser/bin/python scripts/check_report.py target/debug/fedanchor

# The pictures of a report in the README and the documentation.
screenshots: libtorch target/browser/ready
	$(CARGO) build --locked --quiet -p fedanchor-cli
	target/browser/bin/python scripts/check_report.py target/debug/fedanchor --screenshots docs/images

# The figures in the README and the documentation, from committed runs and a new one.
figures: libtorch
	$(CARGO) build --locked --quiet --release -p fedanchor-cli
	$(PYTHON) scripts/figures.py target/release/fedanchor

# Compares the event file of a small run, and of the same run resumed, with its records, in TensorBoard.
test-tensorboard: built target/tensorboard/ready
	rm -rf target/events
	target/tensorboard/bin/python scripts/check_events.py target/debug/fedanchor target/events
	rm -r target/events

# The Python package over the extension module that the tests have: its types, its examples, and what it does.
test-python: built target/python/ready
	rm -rf target/module && mkdir -p target/module && cp -r crates/python/fedanchor target/module
	cp target/debug/deps/lib_native.so target/module/fedanchor/_native.abi3.so
	cd crates/python && ../../target/python/bin/mypy
	cd target/module && OMP_NUM_THREADS=1 LD_LIBRARY_PATH=$(CURDIR)/libtorch/lib PYTHONPATH=. \
		$(CURDIR)/target/python/bin/python $(CURDIR)/crates/python/tests/test_module.py

# The notebooks in docs/notebooks, from beginning to end.
test-notebooks: test-python target/notebooks/ready
	OMP_NUM_THREADS=1 LD_LIBRARY_PATH=$(CURDIR)/libtorch/lib PYTHONPATH=$(CURDIR)/target/module \
		target/notebooks/bin/python scripts/notebooks.py docs/notebooks/*.ipynb

# What takes longer: methods that learn slowly, model files in torchvision (5 GB: the packaged PyTorch for Linux is the
# CUDA version, which computes on a CPU too), Flower with TLS, node keys, failures and what operators do, on two versions,
# a hundred kills, a hundred thousand damaged files for every decoder, the archive, a fleet in containers, notebooks, and
# the Python package where there is nothing else. Needs a real Prometheus and podman (Debian's packages `prometheus`,
# `podman`, `runc`, `netavark`, `aardvark-dns`, `mmdebstrap`).
test-slow: libtorch trunks target/torchvision/ready target/flower/ready target/flower-1.22/ready target/compose/ready
	$(CARGO) run --locked --quiet -p fedanchor-export --example cases -- target/exported
	target/torchvision/bin/python scripts/check_export.py target/exported --torchvision
	rm -r target/exported
	$(CARGO) test --locked --workspace --test runs --test learning -- --ignored --nocapture
	FEDANCHOR_MUTATIONS=100000 $(CARGO) test --locked --release -p fedanchor-data -p fedanchor --test mutated -- --nocapture
	FEDANCHOR_MUTATIONS=100000 $(CARGO) test --locked --release -p fedanchor --lib damaged_bytes
	FEDANCHOR_EVERY_CALL=1 FEDANCHOR_FLIPS=170 $(CARGO) test --locked --release -p fedanchor --test disk
	FEDANCHOR_REQUESTS=100000 $(CARGO) test --locked -p fedanchor-fleet --test fleet random
	$(CARGO) build --locked --quiet -p fedanchor-cli
	target/flower/bin/python scripts/check_fleet.py target/debug/fedanchor
	target/flower/bin/python scripts/check_operation.py target/debug/fedanchor
	target/flower/bin/python scripts/check_metrics.py target/debug/fedanchor
	target/flower/bin/python scripts/fleet.py target/debug/fedanchor --nodes 4 --clients 100 --per-round 10
	cd flower && ../target/flower/bin/python -m unittest discover -s tests
	cd flower && ../target/flower-1.22/bin/python -m unittest discover -s tests
	target/flower-1.22/bin/python scripts/fleet.py target/debug/fedanchor
	$(PYTHON) scripts/dist.py
	target/compose/bin/python scripts/images.py
	$(MAKE) test-notebooks wheel
	PYTHONPATH=target/module target/torchvision/bin/python crates/python/tests/test_torch.py
	$(PYTHON) scripts/wheel.py --install target/wheels/*.whl

# An archive in target/dist that runs without Rust and Python: program, libtorch, trunks, licences, manual pages.
# TARGET=aarch64-unknown-linux-gnu makes the one for 64-bit ARM; scripts/dist.py says what that needs.
dist: libtorch trunks
	$(PYTHON) scripts/dist.py $(if $(TARGET),--target $(TARGET))

# The Python package in target/wheels, for every Python from 3.11 on: program and module. libtorch is that of `torch`.
wheel: libtorch target/python/ready
	$(PYTHON) scripts/wheel.py --maturin target/python/bin/maturin

# Known vulnerabilities, licences, banned crates, lock files and spelling; the tools it needs go into target/tools.
# Vulnerabilities come last, since their database is cloned by git, also where all crates are there already.
check: fuzz-locked target/tools/bin/cargo-deny target/tools/bin/typos
	target/tools/bin/cargo-deny --locked check licenses bans sources
	target/tools/bin/typos
	target/tools/bin/cargo-deny --locked check advisories

target/tools/bin/cargo-deny:
	$(CARGO) install --locked --root target/tools cargo-deny@0.20.2

target/tools/bin/typos: requirements/typos.txt
	$(PYTHON) -m venv target/tools
	target/tools/bin/python $(PINNED) $<
	touch $@

# The documents as a site in target/book, its links checked. The references in it are written from the code by
# `cargo xtask docs`; `make test` fails if they are not those of the code.
docs: target/tools/bin/mdbook
	target/tools/bin/mdbook build
	$(PYTHON) scripts/check_links.py target/book

target/tools/bin/mdbook:
	$(CARGO) install --locked --root target/tools mdbook@0.5.4

# Damaged files against every decoder, guided by coverage, SECONDS for each family. Its flags are of the nightly compiler;
# RUSTC_BOOTSTRAP has the stable one take them. Without address checks where libtorch, which has none, is linked.
FUZZED := data/cifar data/mat data/idx data/npz data/png data/jpeg data/bitmap data/tiff data/archive data/label-studio core/experiment core/sweep core/safetensors core/broadcast core/answer
SECONDS := 60
fuzz: libtorch fuzz-locked target/tools/bin/cargo-fuzz
	for family in $(FUZZED); do \
		name=$${family#*/}; \
		cd $(CURDIR)/crates/$${family%/*} && mkdir -p fuzz/corpus/$$name; \
		LD_LIBRARY_PATH="$(CURDIR)/libtorch/lib:$$LD_LIBRARY_PATH" RUSTC_BOOTSTRAP=1 \
			PATH="$(CURDIR)/target/tools/bin:$$PATH" $(CARGO) fuzz run \
			$$(test $${family%/*} = data || echo -snone) $$name \
			fuzz/corpus/$$name fuzz/seeds/$$name -- -max_total_time=$(SECONDS) -print_final_stats=1 || exit 1; \
	done

# cargo-fuzz has no --locked, and its lock files are of workspaces of their own.
fuzz-locked:
	$(CARGO) fetch --quiet --locked --manifest-path crates/data/fuzz/Cargo.toml
	$(CARGO) fetch --quiet --locked --manifest-path crates/core/fuzz/Cargo.toml

target/tools/bin/cargo-fuzz:
	$(CARGO) install --locked --root target/tools cargo-fuzz@0.13.2

# Compares the training step, a whole round and a trunk with the same work in PyTorch, on the available device.
bench: libtorch trunks
	$(PYTHON) benches/step.py
	$(PYTHON) benches/round.py
	$(PYTHON) benches/fedavg.py
	$(PYTHON) benches/trunk.py
	$(PYTHON) benches/losses.py
	$(CARGO) build --locked --release -p fedanchor-cli
	$(PYTHON) benches/predict.py

# Fetches libtorch into the shared cache: CUDA=1 chooses the CUDA set, CUDA=0 the CPU set again.
libtorch:
	@command -v $(PYTHON) > /dev/null || { echo "error: $(PYTHON) is missing: install Python 3 with pip and run the same command again"; exit 1; }
	@$(PYTHON) scripts/libtorch.py $(if $(filter 1,$(CUDA)),--cuda) $(if $(filter 0,$(CUDA)),--cpu)

clean:
	$(CARGO) clean
