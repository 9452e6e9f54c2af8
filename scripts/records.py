#!/usr/bin/env python3
"""Numbers from the records under results/, by name, for the documentation.

    python3 scripts/records.py "best/cifar10-250-iid-fedanchor/seed0 last10"

In a Markdown file a measured number is followed by a comment that names it:

    87.52<!-- best/cifar10-250-iid-fedanchor/seed0 last10 -->

`test_quoted_numbers.py` computes it again. Such a comment is one of

    PATH METRIC         one run, by its path below results/
    PATH METRIC mean    several runs: seed{0,1,2}; `std` is their sample standard deviation, `sum` their sum
    A - B               the difference of two of these
    effect LEVER PARTITION    the effect of a setting in the first screening

METRIC is a column of results/index.csv, which has a row for every run, also for those whose records are no longer in
the tree. Of runs with records, `behind` counts the rounds in which the anchors' labels are more than five points worse
than the classifier's, `round N` is the test accuracy after that round, and `round N KEY` is another key of its record,
for example `round 25 anchor_head.kept`. Accuracies are percentages.
"""

import csv
import functools
import gzip
import json
import pathlib
import re
import statistics
import sys

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results"
INDEX = RESULTS / "index.csv"


def read_text(path):
    """The text of a file, or of its compressed form."""
    return path.read_text() if path.exists() else gzip.decompress(pathlib.Path(f"{path}.gz").read_bytes()).decode()


def rounds(run):
    """The records of a run, round by round."""
    return [json.loads(line) for line in read_text(run / "rounds.jsonl").splitlines()]


def short_runs(file):
    """The runs of a SWEEP.jsonl.gz, which has one line per run, by path."""
    sweep = file.name.removesuffix(".jsonl.gz")
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    return {f"{sweep}/{run['run']}": run for run in map(json.loads, lines)}


def load_index(path=INDEX):
    """The rows of the index by run, in the order of the file."""
    with open(path, newline="") as file:
        return {row["run"]: row for row in csv.DictReader(file)}


index = functools.cache(load_index)


def metric(run, name):
    if name == "behind":
        heads = [(record["classifier_head"]["all"], record["anchor_head"]["all"]) for record in rounds(RESULTS / run)[1:]]
        return sum(classifier - anchor > 5 for classifier, anchor in heads)
    return float(index()[run][name])


OVER_RUNS = {"mean": statistics.fmean, "std": statistics.stdev, "sum": sum}


def expand(path):
    """`a{0,1}` is `a0` and `a1`."""
    found = re.search(r"\{(.*?)\}", path)
    if not found:
        return [path]
    choices = found.group(1).split(",")
    return [one for choice in choices for one in expand(path[: found.start()] + choice + path[found.end() :])]


def runs(name):
    """The runs that a comment names."""
    paths = [part.split()[0] for part in name.split(" - ") if not part.startswith("effect ")]
    return [run for path in paths for run in expand(path)]


def effect(setting, partition):
    """The mean validation accuracy of the runs of the first screening with a setting, less that of the runs without it.

    In its design of twelve runs per partition every other setting, and the seed, is on in half of either group. The
    effect of `seed=11` is the spread: what chance alone changes.
    """
    rows = [row for run, row in index().items() if run.startswith(f"screening/{partition}-r")]
    is_on = lambda row: any(one.startswith(setting) for one in [f"seed={row['seed']}", *row["settings"].split("; ")])
    mean = lambda wanted: statistics.fmean(float(row["validation"]) for row in rows if is_on(row) == wanted)
    return mean(True) - mean(False)


def value(name):
    """The number that a comment names."""
    if " - " in name:
        first, second = name.split(" - ", 1)
        return value(first) - value(second)
    words = name.split()
    if words[0] == "effect":
        return effect(words[1], words[2])
    path, wanted, rest = words[0], words[1], words[2:]
    if wanted == "round":
        number, rest = int(rest[0]), rest[1:]
        key = rest.pop(0) if rest and rest[0] not in OVER_RUNS else "test_accuracy"
        measure = lambda run: functools.reduce(dict.get, key.split("."), rounds(RESULTS / run)[number])
    else:
        measure = lambda run: metric(run, wanted)
    values = [measure(run) for run in expand(path)]
    if not rest and len(values) == 1:
        return values[0]
    return OVER_RUNS[" ".join(rest)](values)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{value(name):.2f}<!-- {name} -->")
