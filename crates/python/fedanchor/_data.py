"""Data sets in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedanchor import _native


MOST_CLASSES = 65_536


@dataclass(frozen=True)
class _Images:
    """As the extension module reads them."""

    pixels: bytes
    side: int
    channels: int
    labels: list[int] | None


@dataclass(frozen=True)
class _Arrays:
    train: _Images
    test: _Images
    unlabelled: _Images | None
    clients: list[list[int]]
    client_names: list[str]
    classes: list[str]
    flip: bool


def _wrong(what: str, problem: str) -> _native.Error:
    return _native.Error(f"{what}: {problem}")


def _stacked(what: str, images: Any) -> Any:
    """An array of any library, or a data set or list of images (with or without labels), as one array of numpy."""
    if hasattr(images, "detach"):
        return images.detach().cpu().numpy()
    if hasattr(images, "__array__") or hasattr(images, "__array_interface__"):
        return np.asarray(images)
    if isinstance(images, (str, bytes, Mapping)) or not hasattr(images, "__getitem__") or not hasattr(images, "__len__"):
        raise _wrong(what, f"expected an array of 8-bit pixels, got {type(images).__name__}")
    some = [images[at] for at in range(len(images))]
    some = [one[0] if isinstance(one, tuple) and len(one) == 2 else one for one in some]
    try:
        return np.stack([np.asarray(one) for one in some]) if some else np.zeros((0, 1, 1), np.uint8)
    except ValueError as error:
        raise _wrong(what, f"expected images of one size ({error})") from error


def _images(what: str, images: Any, labels: Any | None, classes: int) -> _Images:
    pixels = _stacked(what, images)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.shape[1] != pixels.shape[2] or pixels.shape[3] not in (1, 3):
        problem = f"expected the shape [count, side, side] or [count, side, side, 1 or 3], got {list(pixels.shape)}"
        if pixels.ndim == 4 and pixels.shape[1] in (1, 3):
            problem += ": move the channels to the end"
        raise _wrong(what, problem)
    if pixels.dtype != np.uint8:
        raise _wrong(what, f"expected 8-bit pixels from 0 to 255 (uint8), got {pixels.dtype}")
    if len(pixels) == 0:
        raise _wrong(what, "there are no images")
    numbers: list[int] | None = None
    if labels is not None:
        given = np.asarray(labels)
        if given.ndim != 1 or len(given) != len(pixels) or given.dtype.kind not in "iu":
            raise _wrong(what, f"expected {len(pixels)} whole numbers as labels, got {given.dtype} {list(given.shape)}")
        if given.min() < 0 or given.max() >= classes:
            raise _wrong(what, f"expected labels from 0 to {classes - 1}, got {given.min()} to {given.max()}")
        numbers = [int(label) for label in given]
    _, side, _, channels = pixels.shape
    return _Images(np.ascontiguousarray(pixels).tobytes(), int(side), int(channels), numbers)


def _pair(what: str, part: Any) -> tuple[Any, Any]:
    """Images and labels: a tuple of two arrays, or a data set of pairs such as torch's."""
    if isinstance(part, tuple) and len(part) == 2 and not isinstance(part[0], tuple):
        return part
    if hasattr(part, "__getitem__") and hasattr(part, "__len__") and not hasattr(part, "dtype"):
        pairs = [part[at] for at in range(len(part))] if not isinstance(part, (str, bytes, Mapping)) else []
        if pairs and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            return _stacked(what, [image for image, _ in pairs]), np.asarray([label for _, label in pairs])
    raise _wrong(what, "expected (images, labels), or a data set of such pairs")


@dataclass(frozen=True)
class Clients:
    """Unlabelled images, and which client has which: for every client its name and the numbers of its images, or for every
    image whether the client has it.
    """

    images: Any
    assignment: Mapping[str, Iterable[Any]] | Sequence[Iterable[Any]]


class Data:
    """A data set in memory: 8-bit images `[count, side, side(, channels)]` of numpy, torch or another array library.

    `train` is `(images, labels)`, or a data set of such pairs: the anchors, if there are `clients`; otherwise the images
    from which an experiment draws anchors and deals the others to simulated clients. `classes` are their names, or how
    many there are. `flip` says whether a mirrored image has the same class.
    """

    def __init__(
        self,
        train: Any,
        test: Any,
        classes: Sequence[str] | int,
        *,
        clients: Clients | None = None,
        flip: bool = True,
    ) -> None:
        names = _names(classes)
        if not isinstance(flip, (bool, np.bool_)):
            raise _wrong("flip", f"expected True or False, got {flip!r}")
        if clients is not None and not isinstance(clients, Clients):
            raise _wrong("clients", f"expected fedanchor.Clients, got {type(clients).__name__}")
        self.clients = clients
        parts = {}
        for what, part in [("train", train), ("test", test)]:
            images, labels = _pair(what, part)
            if labels is None:
                raise _wrong(what, "expected labels, got None")
            parts[what] = _images(what, images, labels, len(names))
        unlabelled, assigned, client_names = None, [], []
        if clients is not None:
            unlabelled = _images("clients", clients.images, None, len(names))
            count = len(unlabelled.pixels) // (unlabelled.side**2 * unlabelled.channels)
            for name, numbers in _items(clients.assignment):
                _check_name("clients", name)
                client_names.append(name)
                assigned.append(_numbers(name, numbers, count))
            if len(client_names) != len(set(client_names)):
                raise _wrong("clients", "two clients have the same name")
            if not assigned:
                raise _wrong("clients", "expected at least one client, got none")
        shapes = {(part.side, part.channels) for part in [*parts.values(), unlabelled] if part is not None}
        if len(shapes) > 1:
            raise _wrong("data", "expected images of one size and number of channels in all parts")
        self._arrays = _Arrays(
            parts["train"], parts["test"], unlabelled, assigned, client_names, names, bool(flip)
        )

    def settings(self) -> dict[str, int]:
        """Settings that follow from the clients, where an experiment does not have them."""
        count = len(self._arrays.clients)
        return {"data.anchors": 0, "client.per_round": min(10, count)} if count else {}


def _names(classes: Sequence[str] | int) -> list[str]:
    if isinstance(classes, (int, np.integer)):
        if not 2 <= classes <= MOST_CLASSES:
            raise _wrong("classes", f"expected 2 to {MOST_CLASSES}, got {classes}")
        return [str(at) for at in range(classes)]
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise _wrong("classes", f"expected their names, or how many there are, got {classes!r}")
    names = [str(name) for name in classes]
    if not 2 <= len(names) <= MOST_CLASSES or len(names) != len(set(names)):
        raise _wrong("classes", f"expected 2 to {MOST_CLASSES} different names, got {names[:5]}")
    for name in names:
        _check_name("classes", name)
    return names


def _check_name(what: str, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise _wrong(what, f"expected names of valid Unicode, got {name!r}") from error


def _items(assignment: Any) -> list[tuple[str, Any]]:
    if isinstance(assignment, Mapping):
        return [(str(name), numbers) for name, numbers in assignment.items()]
    if isinstance(assignment, (str, bytes)) or not isinstance(assignment, Iterable):
        problem = f"expected the numbers of each client's images, got {type(assignment).__name__}"
        raise _wrong("clients", problem)
    return [(str(at), numbers) for at, numbers in enumerate(assignment)]


def _numbers(name: str, given: Any, count: int) -> list[int]:
    """Numbers of images, or for every image whether the client has it."""
    what = f"clients: {name}"
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise _wrong(what, f"expected numbers of images, got {given!r}")
    listed = np.asarray(given if isinstance(given, np.ndarray) else list(given))
    if listed.dtype == bool and listed.shape == (count,):
        listed = np.flatnonzero(listed)
    if listed.size == 0:
        raise _wrong(what, "expected at least one image, got none")
    if listed.ndim != 1 or listed.dtype.kind not in "iu":
        problem = f"expected whole numbers of images, or {count} times True or False, got {listed.dtype}"
        raise _wrong(what, f"{problem} {list(listed.shape)}")
    wrong = listed[(listed < 0) | (listed >= count)]
    if wrong.size:
        raise _wrong(what, f"expected numbers from 0 to {count - 1}, got {wrong[0]}")
    if len(np.unique(listed)) < len(listed):
        raise _wrong(what, "an image is named twice")
    numbers: list[int] = listed.tolist()
    return numbers
