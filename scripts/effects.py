#!/usr/bin/env python3
"""What every lever of experiments/screening.toml changes, from the records of its runs:

    python3 scripts/effects.py [FOLDER]    FOLDER holds CELL/seedN [default: results/screening]

The effect of a lever is the mean accuracy of the runs with it less that of the runs without it: on the validation
images, mean of the last ten rounds. In a design of twelve runs every other lever, and the seed, is on in half of
either group. The effect of the seed is the spread: what nothing but chance changes.
"""

import pathlib
import statistics
import sys

import records

# Each lever with the key that it changes and the key's value where it is on.
LEVERS = {
    "server_mixup": ("method.server_mixup", "true"),
    "server.epochs": ("server.epochs", "5"),
    "server.average": ("server.average", "0.8"),
    "agreement": ("method.agreement", "true"),
    "logit_adjustment": ("method.logit_adjustment", "1.0"),
    "alignment": ("method.alignment", "0.5"),
    "threshold": ("method.threshold", "0.8"),
    "optimiser.lr": ("optimiser.lr", "0.06"),
    "server.lr": ("server.lr", None),  # half the clients' rate
    "warm_up": ("method.warm_up.rounds", "10"),
    "seed": ("seed", "11"),
}


def config(run):
    """The keys of a run's config, dotted, with their values as written."""
    keys, section = {}, ""
    for line in (run / "config.toml").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif " = " in line:
            key, value = line.split(" = ", 1)
            keys[section + key] = value
    return keys


def runs(partition, folder=records.RESULTS / "screening"):
    """Config and accuracy of the twelve runs of a partition, `iid` or `dir`."""
    folders = [path.parent for path in sorted(folder.glob(f"{partition}-r*/*/summary.json"))]
    if len(folders) != 12:
        sys.exit(f"{folder}: {len(folders)} finished runs of {partition}, expected 12")
    return [(config(run), records.METRICS["validation"](run)) for run in folders]


def difference(lever, all_runs):
    key, value = LEVERS[lever]
    is_on = lambda keys: key in keys and value in (None, keys[key])
    mean = lambda wanted: statistics.fmean(a for keys, a in all_runs if is_on(keys) == wanted)
    return mean(True) - mean(False)


def effect(lever, partition):
    """One effect, for the documentation."""
    return difference(lever, runs(partition))


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else records.RESULTS / "screening"
    both = {partition: runs(partition, folder) for partition in ("iid", "dir")}
    print(f"{'lever':20} {'Dir 1000':>9} {'Dir 0.1':>9}")
    for lever in LEVERS:
        print(f"{lever:20} " + " ".join(f"{difference(lever, each):+9.2f}" for each in both.values()))


if __name__ == "__main__":
    main()
