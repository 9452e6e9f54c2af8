#!/usr/bin/env python3
"""Compares a loss written in PyTorch with the same loss in Rust, round by round:  python3 benches/losses.py

FedProx as the method of `examples/fedprox` and as `examples/python/fedprox.loss` under supervised training, and the loss
of FedAnchor's clients as the method's own and as `examples/python/fix_mix.loss`. Both do the same steps on the same
images. Runs take turns; printed are medians of the clients' seconds per round, without the first rounds, in which steps
are captured on a GPU.
"""
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from round import HERE, has_gpu

TURNS = 3
SETTLED = 3
PAIRS = {
    "FedProx": (
        ["method.name=fedprox", "method.mu=0.1"],
        ["method.name=supervised", "client.loss.arguments.mu=0.1", "client.loss.file={examples}/fedprox.loss"],
    ),
    "L_fix + b L_mix": ([], ["client.loss.arguments.b=1", "client.loss.file={examples}/fix_mix.loss"]),
}


def seconds(program, settings, out):
    """The clients' seconds in each round that is not among the first."""
    keys = [part for setting in settings for part in ("--set", setting)]
    outcome = subprocess.run([program, "run", "--out", out, *keys], capture_output=True, text=True)
    if outcome.returncode != 0:
        sys.exit(outcome.stderr.strip())
    timings = map(json.loads, (out / "timings.jsonl").read_text().splitlines())
    return [timing["clients"] for timing in timings if timing["round"] > SETTLED]


def main():
    subprocess.run(["cargo", "build", "--locked", "--release", "--quiet", "-p", "fedprox"], cwd=HERE.parent, check=True)
    program = HERE.parent / "target/release/fedprox"
    gpu = has_gpu()
    common = ["preset=best", "data.name=sample", "data.anchors=60", "data.clients=20", "compare=false", "pretrain.epochs=1", "rounds=13", "client.per_round=10"]
    common += ["device=cuda:0", "model.name=wrn28x2"] if gpu else ["model.name=small", "client.epochs=2"]
    print(f"{'WRN-28-2 on a GPU' if gpu else 'small on a CPU'}, 10 clients per round, medians of {TURNS} runs in turn")
    with tempfile.TemporaryDirectory() as folder:
        for name, pair in PAIRS.items():
            found = ([], [])
            for turn in range(TURNS):
                for side, settings in enumerate(pair):
                    settings = [setting.format(examples=HERE.parent / "examples/python") for setting in settings]
                    found[side].extend(seconds(program, [*common, *settings], Path(folder) / f"{name[0]}{turn}{side}"))
            rust, torch = map(statistics.median, found)
            print(f"  {name:16} Rust {rust:.4f} s, PyTorch {torch:.4f} s per round: {torch / rust:.2f} times")


if __name__ == "__main__":
    main()
