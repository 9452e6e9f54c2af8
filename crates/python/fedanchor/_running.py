"""Running experiments."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, overload

import numpy as np

from fedanchor import _native
from fedanchor._data import Data
from fedanchor._frames import flat
from fedanchor._results import PathLike, Run


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


#: A file, or settings: a dictionary, nested as in a file, or a dataclass.
Experiment = PathLike | Mapping[str, Any] | _Dataclass

#: Further settings: `["client.epochs=2"]` or `{"client.epochs": 2}`.
Settings = Iterable[str] | Mapping[str, Any]
Resume = bool | Literal["force"]


def _toml(key: str, value: Any) -> str:
    """A value as TOML: also of a dataclass, a path, an array or a number of numpy."""
    if _is_dataclass(value):
        value = dataclasses.asdict(value)
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Path):
        value = str(value)
    if value is None:
        raise _wrong(key, "None is no value: leave the key out")
    if isinstance(value, Mapping):
        inner = [(str(name), one) for name, one in value.items()]
        pairs = ", ".join(f"{json.dumps(name)} = {_toml(f'{key}.{name}', one)}" for name, one in inner)
        return f"{{ {pairs} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(key, one) for one in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(key, f"expected a finite number, got {value}")
    if isinstance(value, (str, bool, int, float)):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    raise _wrong(key, f"{type(value).__name__} is not a value of a setting")


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _wrong(key: str, problem: str) -> _native.Error:
    error = _native.Error(f"{key}: {problem}")
    error.key = key or None
    return error


def _settings(settings: Settings | None) -> list[str]:
    if settings is None:
        return []
    if isinstance(settings, str):
        raise TypeError("set: expected a list of KEY=VALUE or a dictionary, got a string")
    if isinstance(settings, Mapping):
        return [f"{key}={_toml(str(key), value)}" for key, value in settings.items()]
    listed = list(settings)
    wrong = next((one for one in listed if not isinstance(one, str) or "\n" in one), None)
    if wrong is not None:
        raise TypeError(f"set: expected KEY=VALUE in one line, got {wrong!r}")
    return listed


def _values(experiment: Any) -> dict[str, Any] | None:
    """The settings of an experiment that is not a file; those without a value are left out."""
    if _is_dataclass(experiment):
        experiment = dataclasses.asdict(experiment)
    return _without_none(experiment) if isinstance(experiment, Mapping) else None


def _without_none(values: Mapping[Any, Any]) -> dict[str, Any]:
    kept = {str(key): value for key, value in values.items() if value is not None}
    return {key: _without_none(value) if isinstance(value, Mapping) else value for key, value in kept.items()}


def _resolved(experiment: Any, settings: list[str]) -> tuple[str, list[str], Path | None]:
    values = _values(experiment)
    if values is not None:
        text = "".join(f"{json.dumps(key)} = {_toml(key, value)}\n" for key, value in values.items())
        return (*_native.resolve(None, text, settings), None)
    file = None if experiment is None else Path(experiment)
    return (*_native.resolve(file, None, settings), file)


def _given(experiment: Any, key: str) -> bool:
    """Whether the experiment itself has a key, not its preset."""
    values = _values(experiment)
    if values is None and experiment is not None:
        try:
            values = tomllib.loads(Path(experiment).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False  # which reading it as an experiment explains
    section, _, name = key.partition(".")
    table = (values or {}).get(section)
    return isinstance(table, dict) and name in table


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
        # A service may have no stream for errors.
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self.active = is_terminal or "ipykernel" in sys.modules

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
    resume: Resume = False,
    on_round: Callable[[dict[str, Any]], object] | None = None,
    progress: bool = True,
) -> Run: ...
@overload
def run(
    experiment: Experiment | None = None,
    *,
    set: Settings | None = None,
    seeds: Iterable[int],
    out: PathLike | None = None,
    data: Data | None = None,
    device: str | None = None,
    workers: int | None = None,
    resume: Resume = False,
    on_round: Callable[[dict[str, Any]], object] | None = None,
    progress: bool = True,
) -> list[Run]: ...
def run(
    experiment: Experiment | None = None,
    *,
    set: Settings | None = None,
    seeds: Iterable[int] | None = None,
    out: PathLike | None = None,
    data: Data | None = None,
    device: str | None = None,
    workers: int | None = None,
    resume: Resume = False,
    on_round: Callable[[dict[str, Any]], object] | None = None,
    progress: bool = True,
) -> Run | list[Run]:
    """Runs an experiment: a file, a dictionary or a dataclass, or by default the quick one on the embedded images.

    `set` has further settings, `data` a data set in memory, `seeds` makes one run per seed (a list is returned). `out` is
    the folder of the run, by default a new one below `runs`; with seeds the folder of their folders. `on_round` gets the
    record of every round. An exception in it, and Ctrl-C, ends the run after its round; the same call with `resume=True`
    and its folder goes on. A second Ctrl-C does not wait for that. `resume="force"` goes on although settings or the build
    differ, or although a part of the run is damaged, as the exception that asks for it says.
    """
    settings = _settings(set)
    if data is not None and not isinstance(data, Data):
        raise TypeError(f"data: expected fedanchor.Data, got {type(data).__name__}")
    if on_round is not None and not callable(on_round):
        raise TypeError(f"on_round: expected a function, got {type(on_round).__name__}")
    if resume not in (True, False, "force"):
        raise ValueError(f'resume: expected True, False or "force", got {resume!r}')
    if workers is not None and workers < 1:
        raise ValueError(f"workers: expected at least 1, got {workers}")
    if data is not None:
        defaults = [f"{key}={value}" for key, value in data.settings().items() if not _given(experiment, key)]
        settings = [*defaults, *settings, 'data.name="arrays"']
    if device is not None:
        settings.append(f"device={_toml('device', device)}")
    if seeds is None:
        return _one(experiment, settings, out, data, workers, resume, on_round, progress, "")
    return [
        _one(
            experiment,
            [*settings, f"seed={seed}"],
            None if out is None else Path(out) / f"seed{seed}",
            data,
            workers,
            resume if out is not None and _is_begun(Path(out) / f"seed{seed}") else False,
            on_round,
            progress,
            f"seed {seed}: ",
        )
        for seed in _seeds(seeds)
    ]


def _seeds(seeds: Iterable[int]) -> list[int]:
    try:
        return [operator.index(seed) for seed in seeds]
    except TypeError as error:
        raise TypeError(f"seeds: expected whole numbers, got {seeds!r}") from error


def _is_begun(folder: Path) -> bool:
    return (folder / "config.toml").exists()


def _one(
    experiment: Experiment | None,
    settings: list[str],
    out: PathLike | None,
    data: Data | None,
    workers: int | None,
    resume: Resume,
    on_round: Callable[[dict[str, Any]], object] | None,
    progress: bool,
    name: str,
) -> Run:
    text, notes, file = _resolved(experiment, settings)
    if resume and out is None:
        raise _native.Error("resume: name the folder of the run with out")
    folder = Path(out if out is not None else _native.unused_folder(file, text)).absolute()
    if resume and not _is_begun(folder):
        raise _native.Error(f"resume: there is no run in {folder}: leave resume out to start one")
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

    forced = resume == "force" if resume else None
    _native.run(text, folder, forced, workers, None if data is None else data._arrays, observe)
    return Run(folder)


def sweep(
    experiments: Mapping[str, Experiment],
    out: PathLike,
    *,
    set: Settings | None = None,
    seeds: Iterable[int] = (0,),
    data: Data | None = None,
    device: str | None = None,
    progress: bool = True,
) -> list[Run]:
    """Runs every experiment with every seed in `out/NAME/seedN`. Finished runs are skipped and interrupted ones resumed, so
    that the same call goes on. For the sweep files of the program, use `fedanchor sweep`.
    """
    settings, numbers, done = _settings(set), _seeds(seeds), []
    for name, experiment in experiments.items():
        if not isinstance(name, str) or not name or name in (".", "..") or "/" in name:
            raise ValueError(f"a name in a sweep becomes that of a folder: expected text without `/`, got {name!r}")
        for seed in numbers:
            folder = Path(out) / name / f"seed{seed}"
            one = Run(folder)
            begun = _is_begun(folder)
            if begun and data is None and (folder / "summary.json").exists() and one.is_finished:
                _check_same(one, experiment, [*settings, f"seed={seed}"])
            else:
                one = run(
                    experiment,
                    set=[*settings, f"seed={seed}"],
                    out=folder,
                    data=data,
                    device=device,
                    resume=begun,
                    progress=progress,
                )
            done.append(one)
    return done


def _check_same(run: Run, experiment: Experiment, settings: list[str]) -> None:
    """A finished run is taken for an experiment only if it is one of it."""
    text, _, _ = _resolved(experiment, settings)
    for key, there, now in _native.differences(run.path, text):
        raise _wrong(key, f"{run.path} has a finished run with {there}, not {now}: choose another folder")
