"""Running experiments."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from fedanchor import _native
from fedanchor._data import Data
from fedanchor._results import PathLike, Run

#: A file, or settings: a dictionary, nested as in a file, or a dataclass.
Experiment = PathLike | Mapping[str, Any]

#: Further settings: `["client.epochs=2"]` or `{"client.epochs": 2}`.
Settings = Iterable[str] | Mapping[str, Any]


def _value(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{json.dumps(str(key))} = {_value(one)}" for key, one in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(one) for one in value)}]"
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _settings(settings: Settings | None) -> list[str]:
    if settings is None:
        return []
    if isinstance(settings, str):
        raise TypeError("set: expected a list of KEY=VALUE or a dictionary, got a string")
    if isinstance(settings, Mapping):
        return [f"{key}={_value(value)}" for key, value in settings.items()]
    return list(settings)


def _plain(value: Any) -> str:
    """Paths may stand among settings."""
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"the experiment: {type(value).__name__} is not a value of a setting")


def _resolved(experiment: Any, settings: list[str]) -> tuple[str, list[str], Path | None]:
    if dataclasses.is_dataclass(experiment) and not isinstance(experiment, type):
        experiment = dataclasses.asdict(experiment)
    if isinstance(experiment, Mapping):
        values = json.dumps(dict(experiment), default=_plain, allow_nan=False)
        return (*_native.resolve(None, values, settings), None)
    file = None if experiment is None else Path(experiment)
    return (*_native.resolve(file, None, settings), file)


def resolve(experiment: Experiment | None = None, *, set: Settings | None = None) -> dict[str, Any]:
    """The experiment in full: every key with its value, from the file or settings, its preset and `set`.

    >>> resolve({"preset": "paper"}, set={"client.epochs": 2})["client"]["epochs"]
    2
    """
    text, _, _ = _resolved(experiment, _settings(set))
    resolved: dict[str, Any] = json.loads(text)
    return resolved


class Progress:
    """Prints what a run does as one line that changes: in a terminal and in a notebook, and nothing elsewhere."""

    def __init__(self, name: str = "") -> None:
        self.name, self.started, self.shown = name, time.monotonic(), 0.0
        self.active = sys.stderr.isatty() or "ipykernel" in sys.modules

    def __call__(self, event: Mapping[str, Any], planned: int) -> None:
        if not self.active:
            return
        if event["event"] == "notice":
            self._print(f"note: {event['text']}\n")
        elif event["event"] == "epoch":
            self._print(f"{self.name}{event['phase']}: epoch {event['done']} of {event['planned']}")
        elif event["event"] == "round":
            record = event["record"]
            seconds = time.monotonic() - self.started
            text = f"{record['test_accuracy']:.2f} % after round {record['round']} of {planned}, {seconds:.0f} s"
            self._print(f"{self.name}{text}" + ("\n" if record["round"] == planned else ""), always=True)

    def _print(self, text: str, always: bool = False) -> None:
        now = time.monotonic()
        if always or text.endswith("\n") or now - self.shown > 0.1:
            self.shown = now
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


@overload
def run(
    experiment: Experiment | None = None,
    *,
    set: Settings | None = None,
    seeds: None = None,
    out: PathLike | None = None,
    data: Data | None = None,
    device: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    on_round: Callable[[dict[str, Any]], object] | None = None,
    progress: bool = True,
) -> Run: ...
@overload
def run(
    experiment: Experiment | None = None,
    *,
    set: Settings | None = None,
    seeds: Sequence[int],
    out: PathLike | None = None,
    data: Data | None = None,
    device: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    on_round: Callable[[dict[str, Any]], object] | None = None,
    progress: bool = True,
) -> list[Run]: ...
def run(
    experiment: Experiment | None = None,
    *,
    set: Settings | None = None,
    seeds: Sequence[int] | None = None,
    out: PathLike | None = None,
    data: Data | None = None,
    device: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    on_round: Callable[[dict[str, Any]], object] | None = None,
    progress: bool = True,
) -> Run | list[Run]:
    """Runs an experiment: a file, a dictionary or a dataclass, or by default the quick one on the embedded images.

    `set` has further settings, `data` a data set in memory, `seeds` makes one run per seed (a list is returned). `out` is
    the folder of the run, by default a new one below `runs`; with seeds the folder of their folders. `on_round` gets the
    record of every round. An exception in it, and Ctrl-C, ends the run after its round; the same call with `resume=True`
    and its folder goes on.
    """
    settings = _settings(set)
    if data is not None:
        settings.insert(0, 'data.name="arrays"')
        if data.clients is not None:
            settings[1:1] = ["data.anchors=0", *data.settings()]
    if device is not None:
        settings.append(f"device={_value(device)}")
    if seeds is None:
        return _one(experiment, settings, out, data, workers, resume, on_round, progress, "")
    return [
        _one(
            experiment,
            [*settings, f"seed={int(seed)}"],
            None if out is None else Path(out) / f"seed{seed}",
            data,
            workers,
            resume,
            on_round,
            progress,
            f"seed {seed}: ",
        )
        for seed in seeds
    ]


def _one(
    experiment: Experiment | None,
    settings: list[str],
    out: PathLike | None,
    data: Data | None,
    workers: int | None,
    resume: bool,
    on_round: Callable[[dict[str, Any]], object] | None,
    progress: bool,
    name: str,
) -> Run:
    text, notes, file = _resolved(experiment, settings)
    if resume and out is None:
        raise _native.Error("resume: name the folder of the run with out")
    folder = Path(out) if out is not None else _native.unused_folder(file, text)
    planned = int(json.loads(text)["rounds"])
    show = Progress(name)
    show.active = show.active and progress
    for note in notes:
        show({"event": "notice", "text": note}, planned)

    def observe(event: str) -> None:
        values = json.loads(event)
        show(values, planned)
        if on_round is not None and values["event"] == "round":
            on_round(values["record"])

    _native.run(text, folder, resume, workers, None if data is None else data._arrays, observe)
    return Run(folder)


def sweep(
    experiments: Mapping[str, Experiment],
    out: PathLike,
    *,
    set: Settings | None = None,
    seeds: Sequence[int] = (0,),
    data: Data | None = None,
    device: str | None = None,
    progress: bool = True,
) -> list[Run]:
    """Runs every experiment with every seed in `out/NAME/seedN`. Finished runs are skipped and interrupted ones resumed, so
    that the same call goes on. For the sweep files of the program, use `fedanchor sweep`.
    """
    done = []
    for name, experiment in experiments.items():
        for seed in seeds:
            folder = Path(out) / name / f"seed{seed}"
            begun = (folder / "config.toml").exists()
            one = Run(folder)
            if not (begun and (folder / "summary.json").exists() and one.is_finished):
                settings = [*_settings(set), f"seed={int(seed)}"]
                one = run(
                    experiment,
                    set=settings,
                    out=folder,
                    data=data,
                    device=device,
                    resume=begun,
                    progress=progress,
                )
            done.append(one)
    return done
