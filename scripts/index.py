#!/usr/bin/env python3
"""Adds the runs under results/ to results/index.csv:  python3 scripts/index.py

The index has a row for every run that was ever recorded. Rows stay as they are, also when the records of a run leave
the tree; `test_index.py` compares those of runs with records with these records. `config` is the start of the SHA-256
of config.toml, `last10` and `validation` are means over the last ten rounds, `floor` is the best of the anchors alone,
`backdoor` the success rate of a trigger, `stopped` is 1 for a run that ended with an error, and `settings` are the
settings that differed from the run's preset when the row was added.
"""

import csv
import hashlib
import json
import re
import statistics
import tomllib

import records

COLUMNS = [
    "run", "commit", "config", "seed", "rounds", "final", "last10", "best", "pretrained", "validation", "floor",
    "backdoor", "stopped", "settings",
]  # fmt: skip
PRESETS = records.RESULTS.parent / "crates/core/src/config"
# Settings that change nothing that is learnt or have a column, and those that follow from the data.
LEFT_OUT = re.compile(
    r"seed|preset|device|precision|compare|data\.path|(checkpoint|record)\..*"
    r"|model\.latent_stage|augment\.flip|method\.latents|method\.contrastive\.batch|data\.(sha|norm).*"
)


def flattened(table, path=""):
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{path}{key}.")
        else:
            yield path + key, value


def preset(name, method, partition):
    """The settings of a preset, by dotted key."""
    settings = {}
    for file in ["paper", *([] if name == "paper" else [name])]:
        table = tomllib.loads((PRESETS / f"{file}.toml").read_text())
        method_settings = table.pop("methods", {}).get(method, {})
        own = {"partition": table.pop("partitions", {}).get(partition, {}), "method": method_settings}
        margin = table.pop("anchor_margins", {}).get(method)
        new = {**dict(flattened(table)), **dict(flattened(own))}
        new |= {"checks.anchor_margin": margin} if margin is not None else {}
        for key in new:  # a table replaces a number, and the other way round
            settings = {k: v for k, v in settings.items() if not (k.startswith(f"{key}.") or key.startswith(f"{k}."))}
        settings |= new
    return settings


def differences(config):
    """The settings of a run that differ from its preset."""
    table = tomllib.loads(config)
    expected = preset(table.get("preset", "paper"), table["method"]["name"], table["partition"]["kind"])
    if not expected["server.batch"]:
        expected["server.batch"] = 10 if table["data"]["anchors"] <= 1000 else 250
    found = [(key, value) for key, value in flattened(table) if not LEFT_OUT.fullmatch(key) and expected.get(key) != value]
    return "; ".join(f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in found)


def row(run, summary, config, rounds=()):
    """A row of the index, without its settings. `rounds` is empty if they were not kept."""

    def number(value):
        return "" if value is None else f"{value:.6f}".rstrip("0").rstrip(".")

    def last_ten(key):
        found = [record.get(key) for record in rounds[-10:]]
        return None if not found or None in found else statistics.fmean(found)

    accuracies = [record["test_accuracy"] for record in rounds]
    if rounds and not (accuracies[-1] == summary["final_accuracy"] and summary["best_accuracy"] in accuracies):
        raise ValueError(f"{run}: summary.json and the rounds have different accuracies")
    commit = summary.get("commit", "unknown")
    return {
        "run": run,
        "commit": "" if commit == "unknown" else commit[:12],
        "config": hashlib.sha256(config.encode()).hexdigest()[:12] if config else "",
        "seed": str(summary["seed"]),
        "rounds": str(summary["rounds"]),
        "final": number(summary["final_accuracy"]),
        "last10": number(last_ten("test_accuracy")),
        "best": number(summary["best_accuracy"]),
        "pretrained": number(summary["pretrained_accuracy"]),
        "validation": number(last_ten("validation_accuracy")),
        "floor": number(summary.get("server_only_accuracy")),
        "backdoor": number(summary.get("backdoor_success")),
        "stopped": "0",
    }


def short_row(run, line):
    """A row from a line of SWEEP.jsonl.gz."""
    if "summary" in line:
        return row(run, line["summary"], line.get("config"))
    round = re.search(r"round (\d+)", line["stopped"]).group(1)
    seed = run.rpartition("seed")[2]
    return dict.fromkeys(COLUMNS[:-1], "") | {"run": run, "seed": seed, "rounds": round, "stopped": "1"}


def rows():
    """The rows of all runs with records in the tree, each with the run's config."""
    for file in sorted(records.RESULTS.rglob("config.toml")):
        run, config = file.parent, file.read_text()
        summary = json.loads((run / "summary.json").read_text())
        yield row(run.relative_to(records.RESULTS).as_posix(), summary, config, records.rounds(run)), config
    for file in sorted(records.RESULTS.glob("*.jsonl.gz")):
        for run, line in records.short_runs(file).items():
            yield short_row(run, line), line.get("config")


def main():
    index = records.load_index() if records.INDEX.exists() else {}
    before = len(index)
    for found, config in rows():
        if found["run"] not in index:
            index[found["run"]] = found | {"settings": differences(config) if config else ""}
    with open(records.INDEX, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(index[run] for run in sorted(index))
    print(f"results/index.csv: {len(index) - before} new rows, {len(index)} in all")


if __name__ == "__main__":
    main()
