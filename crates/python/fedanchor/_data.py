"""Data sets in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedanchor import _native


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
    """An array of any library, or a torch data set of images (with or without labels), as one array of numpy."""
    if hasattr(images, "__array__") or hasattr(images, "__array_interface__"):
        return np.asarray(images)
    if hasattr(images, "detach"):
        return images.detach().cpu().numpy()
    raise _wrong(what, f"expected an array of 8-bit pixels, got {type(images).__name__}")


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
    if isinstance(part, tuple) and len(part) == 2:
        return part
    if hasattr(part, "__getitem__") and hasattr(part, "__len__") and not hasattr(part, "dtype"):
        pairs = [part[at] for at in range(len(part))]
        if pairs and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            images = np.stack([np.asarray(image) for image, _ in pairs])
            return images, np.asarray([int(label) for _, label in pairs])
    raise _wrong(what, "expected (images, labels), or a data set of such pairs")


@dataclass(frozen=True)
class Clients:
    """Unlabelled images, and which client has which: for every client its name and the numbers of its images."""

    images: Any
    assignment: Mapping[str, Iterable[int]] | Sequence[Iterable[int]]


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
        names = [str(at) for at in range(classes)] if isinstance(classes, int) else [str(name) for name in classes]
        if not 2 <= len(names) <= 65_536 or len(names) != len(set(names)):
            raise _wrong("classes", f"expected 2 or more different names, got {names[:5]}")
        self.clients = clients
        parts = {}
        for what, part in [("train", train), ("test", test)]:
            images, labels = _pair(what, part)
            parts[what] = _images(what, images, labels, len(names))
        unlabelled, assigned, client_names = None, [], []
        if clients is not None:
            unlabelled = _images("clients", clients.images, None, len(names))
            items = (
                clients.assignment.items()
                if isinstance(clients.assignment, Mapping)
                else [(str(at), one) for at, one in enumerate(clients.assignment)]
            )
            count = len(unlabelled.pixels) // (unlabelled.side**2 * unlabelled.channels)
            for name, numbers in items:
                numbers = [int(number) for number in numbers]
                wrong = next((number for number in numbers if not 0 <= number < count), None)
                if wrong is not None:
                    raise _wrong("clients", f"{name}: expected numbers from 0 to {count - 1}, got {wrong}")
                if not numbers:
                    raise _wrong("clients", f"{name}: expected at least one image, got none")
                client_names.append(str(name))
                assigned.append(numbers)
            if not assigned:
                raise _wrong("clients", "expected at least one client, got none")
        shapes = {part.side: part for part in [*parts.values(), *([unlabelled] if unlabelled else [])]}
        if len(shapes) > 1 or len({part.channels for part in [*parts.values(), *([unlabelled] if unlabelled else [])]}) > 1:
            raise _wrong("data", "expected images of one size and number of channels in all parts")
        self._arrays = _Arrays(
            parts["train"], parts["test"], unlabelled, assigned, client_names, names, flip
        )

    def settings(self) -> list[str]:
        """Settings that follow from the clients."""
        count = len(self._arrays.clients)
        return [f"client.per_round={min(10, count)}"]
