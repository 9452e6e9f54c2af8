#!/usr/bin/env python3
"""Compare a round of this engine with the same work in PyTorch, on a GPU if there is one:  python3 benches/round.py

The engine runs whole rounds (labels, clients, aggregation, server, test); PyTorch runs only the clients' part, one
client after the other, in eager mode and as a captured CUDA graph. Both make the same number of image passes, which
is printed and compared. The floor is the same arithmetic at the speed of a large bfloat16 matrix product. What
cannot run is printed as not measured.

FEDANCHOR_ROUND_BENCH names a built benchmark binary [default: built by cargo].
"""
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROUNDS = 4


def python_with_torch():
    """A Python with PyTorch: this one, or one with the CUDA version of libtorch, which contains PyTorch."""
    candidates = [({}, os.environ.get("TORCH_PYTHON", sys.executable))]
    libtorch = (HERE.parent / "libtorch").resolve()
    if (libtorch / "__init__.py").exists():
        candidates.append(({"PYTHONPATH": str(libtorch.parent)}, sys.executable))
    for environment, program in candidates:
        found = subprocess.run([program, "-c", "import torch; print(torch.cuda.is_available())"], env=os.environ | environment, capture_output=True, text=True)
        if found.returncode == 0:
            return environment, program, found.stdout.strip() == "True"
    return None


def has_gpu():
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def benchmark():
    given = os.environ.get("FEDANCHOR_ROUND_BENCH")
    if given:
        return [given]
    subprocess.run(["cargo", "bench", "--locked", "--no-run", "-p", "fedanchor", "--bench", "round"], cwd=HERE.parent, check=True)
    return ["cargo", "bench", "--locked", "--quiet", "-p", "fedanchor", "--bench", "round", "--"]


class Busy(threading.Thread):
    """The share of time in which a kernel ran, as measured by the driver."""

    def __init__(self):
        super().__init__(daemon=True)
        self.seen, self.done = [], threading.Event()

    def run(self):
        while not self.done.wait(0.2):
            try:
                text = subprocess.run(["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
                self.seen.append(float(text.split()[0]))
            except (FileNotFoundError, IndexError, ValueError):
                return

    def share(self):
        self.done.set()
        self.join()
        middle = self.seen[len(self.seen) // 2 :]
        return sum(middle) / len(middle) if middle else None


def ours(model, device, settings):
    """The phases of the round with median total time, without the first round."""
    busy = Busy()
    if device != "cpu":
        busy.start()
    command = [*benchmark(), model, device, str(ROUNDS), *settings]
    text = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=True).stdout
    share = busy.share() if device != "cpu" else None
    rounds = [dict(re.findall(r"(\w+) ([\d.]+)", line)) for line in text.splitlines() if line.startswith("round ")]
    settled = sorted(rounds[1:] or rounds, key=lambda found: float(found["total"]))
    return {key: float(value) for key, value in settled[len(settled) // 2].items()}, share


def torch_way(torch, way, model, device, sizes):
    if torch is None:
        return None, "no Python with PyTorch found"
    environment, program, _ = torch
    command = [program, str(HERE / "round_torch.py"), model, device, *map(str, sizes), way]
    outcome = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if outcome.returncode != 0:
        return None, (outcome.stderr.strip().splitlines() or ["failed"])[-1]
    return json.loads(outcome.stdout), None


def main():
    torch = python_with_torch()
    gpu = has_gpu()
    device = "cuda:0" if gpu else "cpu"
    if gpu:
        models, settings, sizes = ["resnet18", "wrn28x2"], [], (10, 500, 5, 10)
    else:
        # A smaller version: two clients with 50 images each, one epoch.
        models, settings, sizes = ["small"], ["data.clients=1000", "client.per_round=2", "client.epochs=1", "pretrain.epochs=0"], (2, 50, 1, 10)
    wanted = sys.argv[1:] or models
    for model in wanted:
        found, share = ours(model, device, settings)
        passes = int(found["passes"])
        expected = 2 * sizes[0] * sizes[1] * sizes[2]
        print(f"\n{model} on {device}: {passes:,} image passes per round")
        if passes != expected:
            sys.exit(f"error: expected {expected} image passes per round, found {passes}")
        phases = ", ".join(f"{name} {found[name]:.3f}" for name in ("broadcast", "clients", "aggregate", "server", "test"))
        print(f"  this engine        {found['total']:8.3f} s per round: {phases}")
        print(f"                     {passes / found['clients']:8,.0f} images/s in the clients' part, including labels")
        if share is not None:
            print(f"                     {share:8.0f} % GPU utilisation")
        for way, name in (("eager", "PyTorch, eager"), ("graph", "PyTorch, graph")):
            if way == "graph" and not gpu:
                print(f"  {name:18} not measured: needs a GPU")
                continue
            theirs, why = torch_way(torch, way, model, device, sizes)
            if theirs is None:
                print(f"  {name:18} not measured: {why}")
                continue
            if theirs["passes"] != passes:
                sys.exit(f"error: PyTorch: expected {passes} image passes, found {theirs['passes']}")
            print(f"  {name:18} {theirs['seconds']:8.3f} s for the clients' part: {theirs['seconds'] / found['clients']:.1f} times ours")
        theirs, why = torch_way(torch, "floor", model, device, sizes)
        if theirs is None:
            print(f"  arithmetic floor   not measured: {why}")
        else:
            least = passes * 6 * theirs["operations"] / theirs["rate"]
            print(f"  arithmetic floor   {least:8.3f} s at {theirs['rate'] / 1e12:.1f} TFLOP/s: the clients' part takes {found['clients'] / least:.1f} times that")


if __name__ == "__main__":
    main()
