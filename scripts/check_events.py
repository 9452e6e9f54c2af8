#!/usr/bin/env python3
"""Read the event file of a run back with TensorBoard:  python scripts/check_events.py PROGRAM FOLDER

Runs PROGRAM (`fedanchor`) for a few rounds with --tensorboard in FOLDER, and compares every scalar that TensorBoard
reads with the run's records. Then the run is resumed twice, without the option: once for another round while a reader
is open, and once after a kill, which the script imitates with the files of a killed run. `make test` calls it
with TensorBoard in its own virtual environment.
"""
import argparse
import json
import logging
import subprocess
from pathlib import Path

import numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.util.tensor_util import make_ndarray

SETTINGS = """\
rounds=2 data.name=sample data.anchors=50 data.validation=100 data.clients=200 model.name=small pretrain.epochs=1
client.per_round=2 client.epochs=1 client.batch=16 method.server_mixup=true
""".split()
PHASES = ["broadcast", "clients", "aggregate", "server", "test", "total"]


def check(condition, message):
    if not condition:
        raise SystemExit(f"error: {message}")


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def expected(run):
    """The recorded values, by tag and round."""
    found = {}
    for record, timing in zip(lines(run / "rounds.jsonl"), lines(run / "timings.jsonl"), strict=True):
        heads = {head: record[f"{head}_head"] for head in ("anchor", "classifier")}
        values = {
            "accuracy/test": record["test_accuracy"],
            "accuracy/validation": record["validation_accuracy"],
            "loss/test": record["test_loss"],
            "pseudo_labels/kept_percent": 100 * record["kept"] / record["seen"] if record["seen"] else None,
            "traffic/bytes_down": record["bytes_down"],
            "traffic/bytes_up": record["bytes_up"],
        }
        values |= {f"loss/{name}": loss for name, loss in record["losses"].items()}
        values |= {f"pseudo_labels/{head}_head_{which}": of[which] for head, of in heads.items() for which in of}
        values |= {f"seconds/{phase}": timing[phase] for phase in PHASES}
        for tag, value in values.items():
            if value is not None:
                found.setdefault(tag, {})[record["round"]] = float(numpy.float32(value))
    return found


def compare(reader, run, when):
    """Every scalar of the records must be there once, nothing else, and the build as a text that TensorBoard shows."""
    reader.Reload()
    own, tags = expected(run), reader.Tags()["scalars"]
    check(set(tags) == set(own), f"{when}: tags that only one has: {sorted(set(tags) ^ set(own))}")
    for tag in tags:
        read = [(event.step, event.value) for event in reader.Scalars(tag)]
        check(read == sorted(own[tag].items()), f"{when}: {tag}: {read}, but on record: {own[tag]}")
        times = [event.wall_time for event in reader.Scalars(tag)]
        check(times == sorted(times), f"{when}: {tag}: times go back")
    check(reader.PluginTagToContent("text").keys() == {"build"}, f"{when}: no build: {reader.Tags()}")
    # A reader that is open does not forget texts when it forgets scalars.
    builds = {(event.step, make_ndarray(event.tensor_proto).item().decode()) for event in reader.Tensors("build")}
    build = lines(run / "timings.jsonl")[0]["build"]
    commit = "commit unknown" if build["commit"] == "unknown" else build["commit"][:12] + ", changed" * build["changed"]
    check(builds == {(0, f"{build['version']} ({commit})")}, f"{when}: {builds}, but on record: {build}")
    return sum(len(values) for values in own.values())


def compare_file(run, when):
    """The same for a reader of single events, which does not drop repeated ones."""
    (file,) = (path for path in (run / "tensorboard").iterdir() if path.stat().st_size)
    events = list(LegacyEventFileLoader(str(file)).Load())
    check(events[0].file_version == "brain.Event:2", f"{when}: {events[0]}")
    steps = [event.step for event in events if event.HasField("summary")]
    rounds = [record["round"] for record in lines(run / "rounds.jsonl")]
    check(steps == rounds, f"{when}: steps {steps}, rounds {rounds}")
    return file


def after_event(content, start):
    """Where the event that starts here ends: it has 16 bytes of length and checksums around it."""
    return start + 16 + int.from_bytes(content[start : start + 8], "little")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    # TensorBoard reports every event that it drops.
    logging.getLogger("tensorboard").setLevel(logging.CRITICAL)
    run = args.folder / "run"

    def fedanchor(*arguments):
        subprocess.run([args.program.resolve(), "--quiet", "run", *arguments], check=True, stdout=subprocess.DEVNULL)

    args.folder.mkdir(parents=True)
    paper = args.folder / "paper.toml"
    paper.write_text('preset = "paper"\n', encoding="utf-8")
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    fedanchor(paper, *settings, "--out", run, "--tensorboard")
    reader = EventAccumulator(str(run / "tensorboard"))
    scalars = compare(reader, run, "after the run")
    check(len(reader.Tags()["scalars"]) == 21, f"not every kind of scalar: {reader.Tags()['scalars']}")
    first = compare_file(run, "after the run")

    # A reader that is open sees the resumed run continue.
    fedanchor("--resume", run, "--set", "rounds=3")
    compare(reader, run, "resumed")
    second = compare_file(run, "resumed")
    check(second.name > first.name, f"{second.name} does not sort after {first.name}")

    # A kill: the last checkpoint is not complete, so that its round is repeated, and the file ends in half an event.
    (run / "checkpoints" / "round-000003.checkpoint").unlink()
    content = second.read_bytes()
    start = after_event(content, after_event(content, 0))
    second.write_bytes(content + content[start : start + 50])
    compare(reader, run, "killed")
    fedanchor("--resume", run, "--set", "rounds=4")
    compare(reader, run, "resumed after a kill")
    compare(EventAccumulator(str(run / "tensorboard")), run, "read again")
    compare_file(run, "resumed after a kill")
    print(f"{scalars} scalars of 3 rounds, then of 4 and 5 rounds: TensorBoard reads the recorded values")


if __name__ == "__main__":
    main()
