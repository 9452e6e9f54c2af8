#!/usr/bin/env python3
"""Compare this engine with pfl 0.6.0 on the public CIFAR-10 setting of pfl-research:  python3 benches/fedavg.py

1,000 users with 50 images each, 50 users per round, batch 10, one local epoch, lr 0.1, two-layer CNN, supervised FedAvg: 2,500
image passes per round. Times include local training and aggregation, but no tests.

pfl must be importable, or be in the folder named by PFL_SITE; for a machine without a package registry

    python3 benches/fedavg.py --prepare DIR

fills such a folder with pfl and its dependencies (pure Python, 3 MB). What cannot run is printed as not measured.
"""
import json
import os
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

from round import HERE, benchmark, has_gpu, python_with_torch

ROUNDS = 20
SETTING = ["method.name=supervised", "method.augment=none", "data.clients=1000", "client.per_round=50", "client.batch=10", "client.epochs=1", "optimiser.lr=0.1", "optimiser.momentum=0", "optimiser.weight_decay=0", "optimiser.clip=0", "pretrain.epochs=0", "server.epochs=0"]


def prepare(folder):
    folder.mkdir(parents=True, exist_ok=True)
    wanted = ["pfl==0.6.0", "dill", "multiprocess", "packaging<26"]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), *wanted], check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        wheel.unlink()


def ours(device, settings):
    """Median seconds of training and aggregation per round, and image passes per round."""
    command = [*benchmark(), "cnn", device, str(ROUNDS if device != "cpu" else 3), *SETTING, *settings]
    text = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=True).stdout
    rounds = [line.split() for line in text.splitlines() if line.startswith("round ")]
    rounds = [dict(zip(words[::2], map(float, words[1::2]))) for words in rounds]
    settled = rounds[3:] or rounds[1:]
    return statistics.median(r["broadcast"] + r["clients"] + r["aggregate"] for r in settled), int(rounds[-1]["passes"])


def theirs(torch, who, device):
    if torch is None:
        return None, "no Python with PyTorch found"
    environment, program, _ = torch
    command = [program, str(HERE / "fedavg_torch.py"), who, device, str(ROUNDS if device != "cpu" else 2)]
    outcome = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if outcome.returncode != 0:
        return None, (outcome.stderr.strip().splitlines() or ["failed"])[-1]
    return json.loads(outcome.stdout.strip().splitlines()[-1]), None


def main():
    if sys.argv[1:2] == ["--prepare"]:
        return prepare(Path(sys.argv[2]))
    torch, device = python_with_torch(), "cuda:0" if has_gpu() else "cpu"
    formats = ["bf16", "f32"] if device != "cpu" else ["f32"]
    found = {precision: ours(device, [f"precision={precision}"]) for precision in formats}
    passes = found[formats[0]][1]
    print(f"supervised FedAvg, 50 of 1,000 users, CNN, on {device}: {passes:,} image passes per round")
    for precision, (seconds, _) in found.items():
        print(f"  this engine, {precision:5} {seconds:8.4f} s per round")
    for who, name in (("pfl", "pfl 0.6.0, f32"), ("eager", "PyTorch eager, f32")):
        peer, why = theirs(torch, who, device)
        if peer is None:
            print(f"  {name:18} not measured: {why}")
            continue
        if peer["images"] != passes:
            sys.exit(f"error: {name}: expected {passes} image passes per round, found {peer['images']}")
        ratios = ", ".join(f"{peer['median'] / seconds:.1f} times ours in {precision}" for precision, (seconds, _) in found.items())
        print(f"  {name:18} {peer['median']:8.4f} s per round, one process: {ratios}")


if __name__ == "__main__":
    main()
