#!/usr/bin/env python3
"""Copies the committed part of runs to results/, and adds the runs to results/index.csv:

    python3 scripts/keep_records.py runs/best results/best
    python3 scripts/keep_records.py runs/hostile results/hostile.jsonl.gz
    python3 scripts/keep_records.py runs/quick results/quick --uncompressed

Every run below the first folder is kept at the same path below the second: config, compressed rounds, summary, and the
tables of confused classes, similar classes and images per client and class. Models, checkpoints, timings and lists of
image numbers are not kept; the same config partitions the images in the same way. Paths of this machine are left out of
the config. For a sweep with many short runs, a second argument that ends in .jsonl.gz gets one line per run, without its
rounds. With --uncompressed the records are folders that `fedanchor report` can read, as `quick` and `quick-table` are.
"""

import gzip
import json
import pathlib
import re
import sys

import index

# The tables that every record with a known commit has.
TABLES = ["confusion.csv", "similarity.csv", "partition.csv"]
# A key whose value is an absolute path.
OF_THIS_MACHINE = re.compile(r'^(path|init_from) = ["\']/.*\n', re.MULTILINE)
MOST_BYTES = 100_000


def config(run):
    return OF_THIS_MACHINE.sub("", (run / "config.toml").read_text())


def compressed(data):
    """The same bytes whenever it is called."""
    return gzip.compress(data, mtime=0)


def keep(run, to, uncompressed=False):
    """Keeps the record of a run as a folder."""
    to.mkdir(parents=True)
    (to / "config.toml").write_text(config(run))
    if not uncompressed:
        (to / "rounds.jsonl.gz").write_bytes(compressed((run / "rounds.jsonl").read_bytes()))
    for name in ["summary.json", *TABLES, *(["rounds.jsonl"] if uncompressed else [])]:
        (to / name).write_bytes((run / name).read_bytes())
    size = sum(file.stat().st_size for file in to.iterdir())
    if size > MOST_BYTES:
        print(f"warning: {to}: {size} bytes, more than {MOST_BYTES}", file=sys.stderr)


def line(run, name):
    """The record of a run as a line."""
    found = {"run": name, "config": config(run)}
    if not (run / "summary.json").exists():
        rounds = len((run / "rounds.jsonl").read_text().splitlines()) - 1
        return found | {"stopped": f"ended after round {rounds}"}
    found["summary"] = json.loads((run / "summary.json").read_text())
    return found | {name.removesuffix(".csv"): (run / name).read_text() for name in TABLES}


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--uncompressed"]
    if len(arguments) != 2:
        sys.exit(f"error: expected a folder of runs and where to keep them\n\n{__doc__}")
    runs, to = map(pathlib.Path, arguments)
    found = sorted(file.parent for file in runs.rglob("config.toml"))
    if not found:
        sys.exit(f"error: {runs}: no run below this folder")
    if to.name.endswith(".jsonl.gz"):
        lines = [json.dumps(line(run, str(run.relative_to(runs))), separators=(",", ":")) + "\n" for run in found]
        to.write_bytes(compressed("".join(lines).encode()))
    else:
        for run in found:
            keep(run, to / run.relative_to(runs), "--uncompressed" in sys.argv)
    print(f"{to}: {len(found)} records")
    index.main()


if __name__ == "__main__":
    main()
