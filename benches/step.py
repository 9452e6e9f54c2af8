#!/usr/bin/env python3
"""Compares the client's training step with the same step in PyTorch 2.11, on the same cores.

    make bench                       or    python3 benches/step.py [STEPS]

Both run a network in single precision on two views of 32 images, with backward, clipping and SGD, on prepared inputs:
`small` on images of the embedded sample's size, and WRN-28-2 on CIFAR-10's, with one thread and with all. The programs
alternate step by step, and only one of them runs at a time: the speed of a shared machine varies by more than they
differ. The output is the median over the steps, and the median ratio of steps taken in turn. The first steps are a
warm-up and are not counted.

PyTorch, eager in both layouts and compiled, is that of the interpreter that runs this script, or of the one named by
TORCH_PYTHON; if it cannot be imported its lines read "not measured" (`make target/torchvision/ready` and
TORCH_PYTHON=target/torchvision/bin/python have it measured).
"""
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
WARM_UP = 3
#: Side and channels of their images.
MODELS = {"small": (28, 1), "wrn28x2": (32, 3)}
# Spinning threads distort timings on a busy machine; both programs get the same policy.
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ


def build():
    """Builds the benchmark and returns the path of its program."""
    command = ["cargo", "bench", "--locked", "--bench", "step", "--no-run", "--message-format=json-render-diagnostics", "-p", "fedanchor"]
    outcome = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if outcome.returncode != 0:
        sys.exit("error: cannot build the benchmark")
    artefacts = map(json.loads, outcome.stdout.splitlines())
    return next(a["executable"] for a in artefacts if a.get("executable") and a["target"]["name"] == "step")


def start(command):
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def step(process):
    """Runs one step of one program and returns its seconds."""
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def measure(ours, torch, model, threads):
    side, channels = MODELS[model]
    shape = [model, str(threads), str(side), str(channels)]
    programs = {"fedanchor": start([ours, *shape])}
    if torch:
        for way in ("contiguous", "channels-last", "compiled"):
            programs[f"PyTorch, {way}"] = start([torch, "-W", "ignore", "benches/step_torch.py", *shape, way])
    turns = [{name: step(process) for name, process in programs.items()} for _ in range(WARM_UP + STEPS)][WARM_UP:]
    print(f"{model}, two views of 32 images of {side} x {side} x {channels}, f32, threads: {threads}, {STEPS} steps each")
    for name, process in programs.items():
        median = statistics.median(turn[name] for turn in turns)
        ratio = statistics.median(turn[name] / turn["fedanchor"] for turn in turns)
        print(f"  {name:28} {median * 1000:7.1f} ms per step, {64 / median:6.0f} images/s, {ratio:.3f} x fedanchor's time")
        process.stdin.close()
        process.wait()
    if not torch:
        print("  PyTorch                      not measured: it cannot be imported")


def main():
    torch = os.environ.get("TORCH_PYTHON", sys.executable)
    if subprocess.run([torch, "-W", "ignore", "-c", "import torch"], capture_output=True).returncode != 0:
        torch = None
    ours = build()
    for model in MODELS:
        for threads in sorted({1, os.cpu_count()}):
            measure(ours, torch, model, threads)


main()
