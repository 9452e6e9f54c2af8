#!/usr/bin/env python3
"""Numbers from the records under results/, by name, for the documentation.

    python3 scripts/records.py "best/cifar10-250-iid-fedanchor/seed0 last10"

In a Markdown file a number that was measured is followed by a comment that names it:

    87.52<!-- best/cifar10-250-iid-fedanchor/seed0 last10 -->

`test_quoted_numbers.py` computes it again. What may stand in such a comment:

    PATH METRIC         of one run, below results/
    PATH METRIC mean    over several: seed{0,1,2}; `std` is their sample standard deviation, `sum` their sum
    A - B               the difference of two of these
    effect LEVER PARTITION    of the screening (effects.py)

METRIC is one of `final`, `last10` (mean of the last ten rounds), `best`, `pretrained`, `backdoor` (how often a trigger
works), `floor` (the best on the anchors alone), `validation` (mean of the last ten rounds) and `behind` (rounds in which
the anchors' labels are more than five points worse than the classifier's). `round N` is the test accuracy after that round, and
`round N KEY` another key of its record, for example `round 25 anchor_head.kept`. Accuracies are percentages.

Of a sweep with many short runs, SWEEP.jsonl has no rounds, a run per line, or why a run ended early; `stopped` is 1 for
such a run and 0 for one with a summary. `keep_records.py` writes both kinds of records.
"""

import functools
import json
import pathlib
import re
import statistics
import sys

from keep_records import TABLES

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results"


def rounds(run):
    """The records of a run, round by round."""
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def last_ten(run, key):
    return statistics.fmean(record[key] for record in rounds(run)[-10:])


@functools.cache
def short_runs(sweep):
    """The runs of SWEEP.jsonl, by path."""
    lines = sweep.with_suffix(".jsonl").read_text().splitlines()
    return {sweep / run.pop("run"): run for run in map(json.loads, lines)}


def summary(run, key):
    file = run / "summary.json"
    found = json.loads(file.read_text()) if file.exists() else short_runs(run.parent.parent)[run]["summary"]
    return found[key]


def as_recorded(run, found, of_rounds):
    """A number of a summary, which must be that of the rounds on record."""
    if (run / "rounds.jsonl").exists():
        recorded = of_rounds([record["test_accuracy"] for record in rounds(run)])
        if recorded != found:
            raise ValueError(f"{run}: summary.json has {found}, rounds.jsonl {recorded}")
    return found


def final(run):
    return as_recorded(run, summary(run, "final_accuracy"), lambda accuracies: accuracies[-1])


def best(run):
    return as_recorded(run, summary(run, "best_accuracy"), lambda accuracies: max(accuracies[1:]))


METRICS = {
    "final": final,
    "last10": lambda run: last_ten(run, "test_accuracy"),
    "best": best,
    "pretrained": lambda run: summary(run, "pretrained_accuracy"),
    "backdoor": lambda run: summary(run, "backdoor_success"),
    "floor": lambda run: summary(run, "server_only_accuracy"),
    "validation": lambda run: last_ten(run, "validation_accuracy"),
    "behind": lambda run: sum(record["classifier_head"]["all"] - record["anchor_head"]["all"] > 5 for record in rounds(run)[1:]),
    "stopped": lambda run: int("stopped" in short_runs(run.parent.parent)[run]),
}


def incomplete(run):
    """What a record lacks: its config, and with a known commit the tables beside it; nothing, if it is complete."""
    if run.is_dir():
        there = [path.name for path in run.iterdir()]
        made_by = json.loads((run / "summary.json").read_text())
        config, tables = "config.toml", TABLES
    else:
        there = short_runs(run.parent.parent)[run]
        made_by, config, tables = there.get("summary", {}), "config", [name.removesuffix(".csv") for name in TABLES]
    known = made_by.get("commit", "unknown") != "unknown"
    # Of short runs, configs were not kept before commits were.
    needed = ([config] if known or run.is_dir() else []) + (tables if known else [])
    return [name for name in needed if name not in there]


OVER_RUNS = {"mean": statistics.fmean, "std": statistics.stdev, "sum": sum}


def expand(path):
    """`a{0,1}` is `a0` and `a1`."""
    found = re.search(r"\{(.*?)\}", path)
    if not found:
        return [path]
    choices = found.group(1).split(",")
    return [one for choice in choices for one in expand(path[: found.start()] + choice + path[found.end() :])]


def runs(name):
    """The runs that a comment names; those of an effect have a file of their own."""
    paths = [part.split()[0] for part in name.split(" - ") if not part.startswith("effect ")]
    return [RESULTS / run for path in paths for run in expand(path)]


def value(name):
    """The number that a comment names."""
    if " - " in name:
        first, second = name.split(" - ", 1)
        return value(first) - value(second)
    words = name.split()
    if words[0] == "effect":
        from effects import effect

        return effect(" ".join(words[1:-1]), words[-1])
    path, metric, rest = words[0], words[1], words[2:]
    if metric == "round":
        wanted, rest = int(rest[0]), rest[1:]
        key = rest.pop(0) if rest and rest[0] not in OVER_RUNS else "test_accuracy"
        measure = lambda run: functools.reduce(dict.get, key.split("."), rounds(run)[wanted])
    else:
        measure = METRICS[metric]
    values = [measure(RESULTS / one) for one in expand(path)]
    if not rest and len(values) == 1:
        return values[0]
    return OVER_RUNS[" ".join(rest)](values)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{value(name):.2f}<!-- {name} -->")
