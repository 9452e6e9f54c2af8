#!/usr/bin/env python3
"""Copies what is committed of runs, from their folders to results/:

    python3 scripts/keep_records.py runs/best results/best
    python3 scripts/keep_records.py runs/hostile results/hostile.jsonl

Every run below the first folder is kept at the same path below the second: config, rounds, summary, and the tables that
say which classes are confused, how alike they are and which client had how many of each. Models, checkpoints, timings
and the lists of image numbers stay behind; the same config deals the same images again. Paths of this machine are left
out of the config. For a sweep with many short runs, a second argument that ends in .jsonl gets one line per run, without
its rounds.
"""

import json
import pathlib
import re
import sys

# The tables that every record since commits are known has.
TABLES = ["confusion.csv", "similarity.csv", "partition.csv"]
# A key whose value is an absolute path.
OF_THIS_MACHINE = re.compile(r'^(path|init_from) = ["\']/.*\n', re.MULTILINE)


def config(run):
    return OF_THIS_MACHINE.sub("", (run / "config.toml").read_text())


def keep(run, to):
    """The record of a run, as a folder."""
    to.mkdir(parents=True)
    (to / "config.toml").write_text(config(run))
    for name in ["rounds.jsonl", "summary.json", *TABLES]:
        (to / name).write_bytes((run / name).read_bytes())


def line(run, name):
    """The record of a run, as a line."""
    found = {"run": name, "config": config(run)}
    if not (run / "summary.json").exists():
        rounds = len((run / "rounds.jsonl").read_text().splitlines()) - 1
        return found | {"stopped": f"ended after round {rounds}"}
    found["summary"] = json.loads((run / "summary.json").read_text())
    return found | {name.removesuffix(".csv"): (run / name).read_text() for name in TABLES}


def main():
    if len(sys.argv) != 3:
        sys.exit(f"error: expected a folder of runs and where to keep them\n\n{__doc__}")
    runs, to = map(pathlib.Path, sys.argv[1:])
    found = sorted(file.parent for file in runs.rglob("config.toml"))
    if not found:
        sys.exit(f"error: {runs}: no run below this folder")
    if to.suffix == ".jsonl":
        to.write_text("".join(json.dumps(line(run, str(run.relative_to(runs))), separators=(",", ":")) + "\n" for run in found))
    else:
        for run in found:
            keep(run, to / run.relative_to(runs))
    print(f"{to}: {len(found)} records")


if __name__ == "__main__":
    main()
