"""What runs wrote: records, figures, tables."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedanchor import _native
from fedanchor._frames import array, flat, frame

PathLike = str | os.PathLike[str]


def _folder(folder: Run | PathLike) -> Path:
    return folder.path if isinstance(folder, Run) else Path(folder)


def _folders(folders: Folders) -> list[Path]:
    if isinstance(folders, (str, os.PathLike, Run)):
        folders = [folders]
    return [_folder(folder) for folder in folders]


@dataclass(frozen=True)
class Figure:
    """A figure of a report, which notebooks show."""

    name: str
    title: str
    caption: str
    #: SVG files by what they differ in, for example the round; a single one has an empty name.
    frames: dict[str, str]

    @property
    def svg(self) -> str:
        """The last of its frames."""
        return list(self.frames.values())[-1]

    def save(self, path: PathLike) -> None:
        """Writes it as an SVG file."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg


class Run:
    """The folder of a run, finished or in progress; it is read once, when something of it is asked for."""

    def __init__(self, path: PathLike) -> None:
        # Where it was then, should the working directory change.
        self.path = Path(path).absolute()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @cached_property
    def _content(self) -> tuple[dict[str, Any], list[tuple[int, bytes, int, list[int], list[int]]]]:
        text, latents = _native.read_run(self.path)
        return json.loads(text), latents

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its experiment, with every key."""
        config: dict[str, Any] = self._content[0]["config"]
        return config

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """A record per round; round 0 is the state after pre-training. docs/run-folder.md explains the keys."""
        records: list[dict[str, Any]] = self._content[0]["rounds"]
        return records

    @property
    def rounds(self) -> Any:
        """The records as a data frame of pandas or polars, whichever is installed, else as dictionaries without nesting."""
        return frame(self.records)

    @property
    def timings(self) -> Any:
        """Seconds and memory per round, in the same form."""
        return frame(self._content[0]["timings"])

    @property
    def summary(self) -> dict[str, Any] | None:
        """The run in a few numbers, or as far as it came if it was stopped; `None` while it is computed."""
        summary: dict[str, Any] | None = self._content[0]["summary"]
        return summary

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        classes: list[str] = self._content[0]["classes"]
        return classes

    @property
    def confusion(self) -> list[list[int]] | None:
        """Test images by true class (rows) and predicted class (columns) of the final model; `None` before it ends."""
        confusion: list[list[float]] | None = self._content[0]["confusion"]
        return None if confusion is None else [[round(count) for count in row] for row in confusion]

    @property
    def latents(self) -> dict[int, dict[str, Any]]:
        """Latents of test images by round, with true and predicted classes, if the run has `record.latents`."""
        return {
            round: {
                "latents": array(values, (len(labels), width)),
                "labels": labels,
                "predicted": predicted,
            }
            for round, values, width, labels, predicted in self._content[1]
        }

    @property
    def problems(self) -> list[str]:
        """Files and lines that are missing or damaged."""
        try:
            problems: list[str] = self._content[0]["problems"]
        except _native.Error as error:
            problems = [str(error)]
        return problems

    @property
    def is_finished(self) -> bool:
        """Whether all planned rounds are there."""
        return bool(self._content[0]["finished"])

    def verify(self) -> dict[str, Any]:
        """Compares all files with their checksums. `problems` is empty if they are what the run wrote."""
        found: dict[str, Any] = json.loads(_native.verify(self.path))
        return found

    def figures(self, smooth: int = 1) -> dict[str, Figure]:
        """The figures of a report on this run, by name."""
        self._content  # or why there is nothing to draw
        drawn = _native.figures([self.path], smooth)
        return {name: Figure(name, title, caption, dict(frames)) for name, title, caption, frames in drawn}

    def figure(self, name: str, smooth: int = 1) -> Figure:
        """A figure of a report on this run, for example `accuracy`."""
        figures = self.figures(smooth)
        if name not in figures:
            raise _native.Error(f"figure: expected one of {', '.join(figures)}, got {name!r}")
        return figures[name]


#: A folder with runs, a run, or several of them.
Folders = Run | PathLike | Iterable[Run | PathLike]


def runs(folders: Folders) -> Any:
    """A row per run in these folders, with its settings and its results, as a data frame like `Run.rounds`. `done` is
    the number of rounds that are there. A run that is damaged has a `problem`, beside what can be read of it.
    """
    rows: list[dict[str, Any]] = []
    for path in _native.find_runs(_folders(folders)):
        run = Run(path)
        try:
            summary = flat(run.summary or {})
            summary.pop("rounds", None)
            rows.append({"path": str(path), **flat(run.config), "done": len(run.records) - 1, **summary})
            if run.problems:
                rows[-1]["problem"] = "; ".join(run.problems)
        except _native.Error as error:
            rows.append({"path": str(path), "problem": str(error)})
    return frame(rows)


def table(folders: Folders) -> Any:
    """A row per experiment over its seeds, with the number that the paper reports for it, as a data frame. A warning names
    runs that are in no row, since they are damaged or not finished.
    """
    found = json.loads(_native.table(_folders(folders)))
    for left_out in found["left_out"]:
        warnings.warn(f"not in the table: {left_out}", stacklevel=2)
    return frame(found["rows"])


def compare(one: Run | PathLike, other: Run | PathLike, accuracy: float | None = None) -> dict[str, Any]:
    """Two experiments: settings, accuracies, and rounds, bytes and seconds to an accuracy."""
    comparison: dict[str, Any] = json.loads(_native.compare(_folder(one), _folder(other), accuracy))
    return comparison


def report(folders: Folders, out: PathLike = "report", smooth: int = 1) -> Path:
    """Writes a report with figures and tables; returns its page."""
    return Path(_native.report(_folders(folders), Path(out), smooth))
