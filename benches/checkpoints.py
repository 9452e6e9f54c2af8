#!/usr/bin/env python3
"""Measure the cost of checkpoints:  python3 benches/checkpoints.py FEDANCHOR ROUNDS [ARGUMENT ...]

Runs the same experiment without and with checkpoints alternately, three times each, and compares the seconds per round between
the fourth and the last, from the lines that the program prints after each round. Arguments are passed to `fedanchor run`. For
the preset `paper`:

    python3 benches/checkpoints.py target/release/fedanchor 15 paper.toml --device cuda:0 --set method.threshold=-1
"""
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTLED = 4


def seconds_per_round(program, rounds, arguments, write, out):
    settings = [f"rounds={rounds}", "compare=false", f"checkpoint.write={str(write).lower()}"]
    command = [program, "run", *arguments, "--out", str(out)]
    for setting in settings:
        command += ["--set", setting]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    seen = {}
    for line in run.stderr:
        if line.startswith("round "):
            seen[int(line.split()[1].split("/")[0])] = time.monotonic()
        elif line.startswith("error"):
            sys.exit(line.strip())
    if run.wait() != 0:
        sys.exit(f"{' '.join(command)} failed")
    rejected = sum(len(json.loads(line)["rejected"]) for line in (out / "rounds.jsonl").open())
    return (seen[rounds] - seen[SETTLED]) / (rounds - SETTLED), rejected


def main():
    if len(sys.argv) < 3 or int(sys.argv[2]) <= SETTLED:
        sys.exit(f"usage: checkpoints.py FEDANCHOR ROUNDS [ARGUMENT ...], where ROUNDS is more than {SETTLED}")
    program, rounds, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    found = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(3):
            for write in found:
                out = Path(folder) / f"{write}-{turn}"
                seconds, rejected = seconds_per_round(program, rounds, arguments, write, out)
                found[write].append(seconds)
                print(f"{'with' if write else 'without'} checkpoints: {seconds:.4f} s per round, {rejected} updates rejected", flush=True)
    without, with_them = (statistics.median(found[write]) for write in (False, True))
    print(f"median: {without:.4f} s without, {with_them:.4f} s with checkpoints ({100 * (with_them / without - 1):+.1f} %)")


if __name__ == "__main__":
    main()
