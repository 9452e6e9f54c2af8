#!/usr/bin/env python3
"""Compare a trunk with the same network in PyTorch 2.11, on one core each.

    TORCH_PYTHON=PYTHON python3 benches/trunk.py [TURNS]        [default: 30]

EfficientNet-Lite0 encodes five pictures of 224 pixels per call, one as it is and two views of each kind, from 8-bit
pixels to vectors in half precision. PyTorch does so eagerly and as TorchScript (frozen, and optimised for inference),
each in both layouts, and compiled by `torch.compile`. First, the vectors of all are compared on a picture of soft shapes.
The programs take turns, and only one of them runs at a time: the speed of a shared machine varies by more than they
differ. The output is the median over the turns, and the median ratio of calls taken in turn; the first are a warm-up.

PyTorch is that of the interpreter that runs this script, or of the one named by TORCH_PYTHON; if it cannot be imported its
lines read "not measured". The trunk is that of `make trunks`.
"""
import json
import math
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import trunks

TURNS = int(sys.argv[1]) if len(sys.argv) > 1 else 30
WARM_UP = 3
PICTURES, SIDE, WIDTH = 5, 224, 1280
LAYOUTS = ("contiguous_format", "channels_last")
PEERS = [(kind, layout) for kind in ("eager", "frozen", "optimised") for layout in LAYOUTS] + [("compiled", "channels_last")]
WEIGHTS = trunks.default_folder() / "efficientnet-lite0.safetensors"
# Of the largest number: half precision keeps eleven bits.
TOLERANCE = 2e-3


def build():
    """Build the benchmark and return the path of its program."""
    command = ["cargo", "bench", "--locked", "--bench", "trunk", "--no-run", "--message-format=json-render-diagnostics", "-p", "fedanchor-engine"]
    outcome = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if outcome.returncode != 0:
        sys.exit("error: cannot build the benchmark")
    artefacts = map(json.loads, outcome.stdout.splitlines())
    return next(a["executable"] for a in artefacts if a.get("executable") and a["target"]["name"] == "trunk")


def pictures():
    """Pixels of soft shapes, other ones in every picture and channel."""
    waves = [[127.5 + 127.5 * math.sin(step * place / SIDE) for place in range(SIDE)] for step in range(1, 3 * PICTURES + 1)]
    return bytes(int((waves[3 * n + c][x] + waves[3 * n + 2 - c][y]) / 2)
                 for n in range(PICTURES) for y in range(SIDE) for x in range(SIDE) for c in range(3))


def start(command):
    environment = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"} | os.environ | {"FEDANCHOR_TRUNKS": str(WEIGHTS.parent)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def encode(process, pixels):
    """Encode the pictures once in one program and return its seconds."""
    process.stdin.write(f"{pixels}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def vectors(path):
    return struct.unpack(f"<{PICTURES * WIDTH}e", path.read_bytes())


def main():
    python = os.environ.get("TORCH_PYTHON", sys.executable)
    has_torch = subprocess.run([python, "-W", "ignore", "-c", "import torch"], capture_output=True).returncode == 0
    programs = {"fedanchor": start([build()])}
    for kind, layout in PEERS if has_torch else []:
        programs[f"PyTorch, {kind}, {layout}"] = start([python, "-W", "ignore", "benches/trunk_torch.py", WEIGHTS, kind, layout])
    with tempfile.TemporaryDirectory() as folder:
        pixels = Path(folder) / "pictures.pixels"
        pixels.write_bytes(pictures())
        encode(programs["fedanchor"], pixels)
        ours, worst = vectors(pixels.with_suffix(".vectors")), 0.0
        for name in list(programs)[1:]:
            encode(programs[name], pixels)
            theirs = vectors(pixels.with_suffix(".torch"))
            worst = max(worst, *(abs(a - b) for a, b in zip(ours, theirs)))
            if worst > TOLERANCE * max(ours):
                sys.exit(f"error: {name} computes other vectors: they differ by {worst:.2g}")
        turns = [{name: encode(process, pixels) for name, process in programs.items()} for _ in range(WARM_UP + TURNS)][WARM_UP:]
    print(f"EfficientNet-Lite0, {PICTURES} pictures of {SIDE} pixels per call, f32, one core, {TURNS} calls each")
    for name in programs:
        median = statistics.median(turn[name] for turn in turns)
        ratio = statistics.median(turn[name] / turn["fedanchor"] for turn in turns)
        print(f"  {name:38} {median * 1000:7.1f} ms per call, {PICTURES / median:5.1f} pictures/s, {ratio:.3f} x fedanchor's time")
    if has_torch:
        print(f"  largest difference of a number: {worst:.2g} (the largest number: {max(ours):.2f})")
    else:
        print("  PyTorch: not measured, since it cannot be imported")


main()
