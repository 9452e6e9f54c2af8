"""Trained models."""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedanchor import _native
from fedanchor._frames import array
from fedanchor._results import PathLike, Run

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Prediction:
    """What a model predicts of one picture."""

    #: The class of the classification head, and its probability.
    label: str
    confidence: float
    #: The class whose anchors are nearest, and the average cosine with them.
    nearest: str
    cosine: float
    #: The probability of every class.
    probabilities: dict[str, float]


class Model:
    """A trained model."""

    def __init__(self, native: _native.Model) -> None:
        self._native = native
        self.description: dict[str, Any] = json.loads(native.description())

    @classmethod
    def load(cls, run_or_file: Run | PathLike, *, trunk: PathLike | None = None, device: str = "cpu") -> Model:
        """Reads the model of a run or of a model file. `trunk` names the file or name of its trunk, if it has one."""
        path = run_or_file.path if isinstance(run_or_file, Run) else Path(run_or_file)
        return cls(_native.Model(path, None if trunk is None else str(trunk), device))

    def __repr__(self) -> str:
        return f"<fedanchor.Model {self.description['model']['name']} for {', '.join(self.classes)}>"

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        classes: list[str] = self.description["classes"]
        return classes

    def predict(self, pictures: Any) -> list[Prediction]:
        """Predicts pictures: paths, PIL images, or an array of 8-bit pixels `[count, height, width(, channels)]`."""
        probabilities, scores = self._native.predict(self._pixels(pictures))
        classes = self.classes
        predictions = []
        for row, near in zip(self._rows(probabilities), self._rows(scores)):
            best = max(range(len(classes)), key=row.__getitem__)
            nearest = max(range(len(classes)), key=near.__getitem__)
            named = dict(zip(classes, row))
            predictions.append(Prediction(classes[best], row[best], classes[nearest], near[nearest], named))
        return predictions

    def scores(self, pictures: Any) -> Any:
        """The average cosine with the anchors of every class, `[count, classes]`."""
        _, scores = self._native.predict(self._pixels(pictures))
        return array(scores, (len(scores) // (4 * len(self.classes)), len(self.classes)))

    def latents(self, pictures: Any) -> Any:
        """Latents of length 1, `[count, width]`."""
        pixels = self._pixels(pictures)
        latents = self._native.latents(pixels)
        return array(latents, (len(pixels), len(latents) // (4 * max(len(pixels), 1))))

    def to_torch(self) -> torch.nn.Module:
        """The network as a module of torch: from 8-bit pixels `[count, side, side, channels]` to a dictionary of
        `logits`, `probabilities`, and where the model has them `latents` and `scores`.
        """
        from fedanchor._torch import Network

        return Network(*self._native.graph())

    def _rows(self, values: bytes) -> list[list[float]]:
        numbers = list(struct.unpack(f"<{len(values) // 4}f", values))
        width = len(self.classes)
        return [numbers[at : at + width] for at in range(0, len(numbers), width)]

    def _pixels(self, pictures: Any) -> list[bytes]:
        if isinstance(pictures, (str, os.PathLike)) or _is_picture(pictures):
            pictures = [pictures]
        if _is_array(pictures):
            pictures = list(pictures) if np.asarray(pictures).dtype.kind in "OUS" else _pictures_of(pictures)
        if not isinstance(pictures, Iterable) or isinstance(pictures, (bytes, Mapping)):
            problem = f"pictures: expected paths, PIL images or arrays, got {type(pictures).__name__}"
            raise _native.Error(problem)
        return [self._one(picture) for picture in pictures]

    def _one(self, picture: Any) -> bytes:
        if isinstance(picture, (str, os.PathLike)):
            return self._native.read(Path(picture))
        if _is_picture(picture):
            return self._native.decode(_file_of(picture))
        if not _is_array(picture):
            raise _native.Error(f"a picture: expected a path, a PIL image or an array, got {type(picture).__name__}")
        [pixels] = _pictures_of(picture[None, ..., None] if picture.ndim == 2 else picture[None])
        height, width, channels = pixels.shape
        return self._native.fitted(pixels.tobytes(), width, height, channels)


def _file_of(picture: Any) -> bytes:
    """A picture of PIL as a file, which is read like every other: transparency, 16 bits and orientation as there."""
    from PIL import ImageOps

    picture = ImageOps.exif_transpose(picture)
    file = io.BytesIO()
    try:
        if picture.mode in ("CMYK", "YCbCr", "LAB", "HSV", "RGBX"):
            picture = picture.convert("RGB")
        elif picture.mode == "La":
            picture = picture.convert("LA")
        elif picture.mode in ("RGBa", "PA"):
            picture = picture.convert("RGBA")
        picture.save(file, "PNG", compress_level=0)
    except (OSError, ValueError) as error:
        raise _native.Error(f"a picture: PIL cannot write the mode {picture.mode} as PNG ({error})") from error
    return file.getvalue()


def _is_picture(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "tobytes")


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _pictures_of(values: Any) -> Sequence[Any]:
    pixels = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if pixels.ndim == 3:
        # One picture in colour, or several without.
        pixels = pixels[None] if pixels.shape[-1] == 3 else pixels[..., None]
    if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3) or pixels.dtype != np.uint8:
        raise _native.Error(
            "pictures: expected 8-bit pixels (uint8) of the shape [count, height, width], [count, height, width, 1 or 3] "
            f"or [height, width, 3], got {pixels.dtype} {list(pixels.shape)}"
        )
    return list(np.ascontiguousarray(pixels))
