#!/usr/bin/env python3
"""The figures of the documentation, from real runs:  python3 scripts/figures.py FEDANCHOR

Repeats the quick experiment with FEDANCHOR (the program), saving what a report needs for every figure, and copies
figures of reports on it and on committed runs to docs/images. The screenshots there are from `make screenshots`.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import hostile_figure
import records

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGES = REPOSITORY / "docs/images"
RESULTS = REPOSITORY / "results"

# Runs, options of `fedanchor report`, and for the names in docs/images how the names of the figures end.
REPORTS = [
    ([RESULTS / "quick"], [], {"quick": "small-accuracy"}),
    (
        [RESULTS / "batch10/cifar10-500-iid-fedanchor/seed1", RESULTS / "batch10/cifar10-500-iid-semifl/seed1"],
        ["--smooth", "5"],
        {"method-kept": "wrn28x2-kept", "method-labels": "wrn28x2-labels-all"},
    ),
    *(
        (
            sorted(RESULTS.glob(f"best/cifar10-{anchors}-{partition}-*")),
            [],
            {f"results-{anchors}-{partition}": "wrn28x2-accuracy"},
        )
        for anchors in (500, 250)
        for partition in ("iid", "dir")
    ),
    (
        [RESULTS / "quick-table"],
        [],
        {
            "report-accuracy": "small-accuracy",
            "report-kept": "small-kept",
            "report-labels": "small-labels-kept",
            "report-traffic": "small-traffic",
        },
    ),
]
SAVED = ["--set", "record.latents=[0, 40]", "--set", "record.samples=16", "--set", "compare=false"]
OF_SAVED = {
    "report-latents-first": "small-latents-1",
    "report-latents-last": "small-latents-2",
    "report-confusion": "small-confusion",
    "report-similarity": "small-similarity",
    "report-samples": "small-samples",
}


def unpacked(run, to):
    """A copy of committed runs with their rounds uncompressed, as `fedanchor report` reads them."""
    shutil.copytree(run, to)
    for packed in to.rglob("*.gz"):
        name = packed.with_suffix("")
        name.write_text(records.read_text(name))
    return to


def main(program):
    (IMAGES / "hostile.svg").write_text(hostile_figure.figure())
    (IMAGES / "hostile.csv").write_text(hostile_figure.table())

    def fedanchor(*arguments):
        subprocess.run([program, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        fedanchor("run", *SAVED, "--out", run)
        for number, (runs, options, figures) in enumerate([*REPORTS, ([run], [], OF_SAVED)]):
            report, copies = Path(folder) / f"report{number}", Path(folder) / f"runs{number}"
            runs = [unpacked(one, copies / str(place)) for place, one in enumerate(runs)]
            fedanchor("report", *runs, *options, "--out", report)
            for name, figure in figures.items():
                [drawn] = (report / "figures").glob(f"*-{figure}.svg")
                (IMAGES / f"{name}.svg").write_bytes(drawn.read_bytes())
        fedanchor("data", "partition", "--set", "partition.alpha=0.1", "--out", Path(folder) / "partition")
        (IMAGES / "report-partition.svg").write_bytes((Path(folder) / "partition.svg").read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
