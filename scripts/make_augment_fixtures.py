#!/usr/bin/env python3
"""Make the fixtures for testing the augmentation operations against Pillow.

    make target/fixtures/ready
    target/fixtures/bin/python scripts/make_augment_fixtures.py

Writes crates/data/tests/fixtures/augment.json (images, operations, weak draws, and the version of
Pillow) and augment.z (zlib: the pixels of the images, then of all images after each operation, then
of all images after each weak draw). The files in the repository were made with Pillow 13.0.0 and
numpy 2.4.6 on x86-64.
"""

import argparse
import json
import math
import pathlib
import zlib

import numpy as np
import PIL
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

FIXTURES = pathlib.Path(__file__).parent.parent / "crates/data/tests/fixtures"


def landscape(side, channels):
    """Sky, hills, a sun and some texture, for a histogram and edges like those of a photograph."""
    rng = np.random.default_rng(side)
    y, x = np.mgrid[0:side, 0:side] / side
    hill = y > 0.6 + 0.15 * np.sin(7 * x) * np.cos(3 * x + 1)
    sun = (x - 0.7) ** 2 + (y - 0.25) ** 2 < 0.02
    sky = np.stack([90 + 80 * y, 130 + 70 * y, 220 - 30 * y], axis=2)
    earth = np.stack([60 + 70 * x, 110 - 40 * y, 30 + 20 * x], axis=2)
    picture = np.where(hill[..., None], earth, sky)
    picture = np.where(sun[..., None], [250, 235, 160], picture)
    picture = picture + rng.normal(0, 4, picture.shape) * (0.3 + hill[..., None])
    picture = picture.clip(0, 255).astype(np.uint8)
    return picture if channels == 3 else picture[..., 1:2]


def noise(side, channels):
    return np.random.default_rng(1).integers(0, 256, (side, side, channels), dtype=np.uint8)


def constant(side, channels):
    return np.full((side, side, channels), [200, 31, 90][:channels], dtype=np.uint8)


def gradient(side, channels):
    """Ramps from left to right, from top to bottom, and along the diagonal."""
    y, x = np.mgrid[0:side, 0:side]
    ramps = np.stack([x * 255 // (side - 1), 20 + 5 * y, (x + y) * 3], axis=2)
    return ramps[..., :channels].astype(np.uint8)


IMAGES = [
    (landscape, 32, 3),
    (gradient, 32, 3),
    (landscape, 28, 1),
    (gradient, 28, 1),
    (constant, 28, 1),
    (noise, 20, 3),
    (constant, 20, 3),
]


def arguments():
    """Every operation with arguments that the presets use, and at its limits."""
    yield "identity"
    yield "auto-contrast"
    yield "equalize"
    yield "invert"
    for bits in (1, 4, 7, 8):
        yield {"posterize": {"bits": bits}}
    for threshold in (0, 26, 128, 179, 256):
        yield {"solarize": {"threshold": threshold}}
    for name in ("brightness", "color", "contrast", "sharpness"):
        for factor in (0.0, 0.14, 0.73, 1.27, 1.9):
            yield {name: {"factor": factor}}
    for degrees in (0, 9, -9, 27, 30, -30, 90, 180, 211.5):
        yield {"rotate": {"degrees": degrees}}
    for name in ("shear-x", "shear-y"):
        for filter in ("nearest", "bilinear"):
            for slope in (0.09, 0.3, -0.3):
                yield {name: {"slope": slope, "filter": filter}}
    for name in ("translate-x", "translate-y"):
        for pixels in (4, -8, 100):
            yield {name: {"pixels": pixels}}
    for left, top, right, bottom in ((0, 3, 9, 19), (15, 12, 31, 28), (11, 0, 52, 41)):
        yield {"cutout": {"left": left, "top": top, "right": right, "bottom": bottom}}


def torchvision_shear(x, y):
    """The matrix torchvision passes to Pillow for a shear about the upper left corner."""
    x, y = (math.radians(math.degrees(math.atan(slope))) for slope in (x, y))
    a, c = math.cos(-y) / math.cos(y), math.sin(-y) / math.cos(y)
    b, d = -a * math.tan(x), -c * math.tan(x) + 1
    return (d, -b, 0, -c, a, 0)


def affine(image, matrix, filter="nearest"):
    resample = Image.Resampling[filter.upper()]
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample)


def shear(image, x, y, filter):
    result = affine(image, (1, x, 0, y, 1, 0), filter)
    if filter == "nearest":  # the only filter the torchvision preset uses
        assert result == affine(image, torchvision_shear(x, y))
    return result


def cutout(image, left, top, right, bottom):
    image = image.copy()
    # Pillow includes the last row and column of a rectangle.
    box = (left, top, right - 1, bottom - 1)
    ImageDraw.Draw(image).rectangle(box, 127 if image.mode == "L" else (127, 127, 127))
    return image


OPERATIONS = {
    "identity": lambda image: image,
    "auto-contrast": ImageOps.autocontrast,
    "equalize": ImageOps.equalize,
    "invert": ImageOps.invert,
    "posterize": ImageOps.posterize,
    "solarize": ImageOps.solarize,
    "brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "color": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    "contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    "sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    "rotate": lambda image, degrees: image.rotate(degrees),
    "shear-x": lambda image, slope, filter: shear(image, slope, 0, filter),
    "shear-y": lambda image, slope, filter: shear(image, 0, slope, filter),
    "translate-x": lambda image, pixels: affine(image, (1, 0, pixels, 0, 1, 0)),
    "translate-y": lambda image, pixels: affine(image, (1, 0, 0, 0, 1, pixels)),
    "cutout": cutout,
}

WEAK = [
    {"mirror": mirror, "dx": dx, "dy": dy}
    for mirror in (False, True)
    for dx, dy in ((0, 0), (-2, 2), (2, -1), (1, 0))
]


def apply(op, pixels):
    [(name, arguments)] = [(op, {})] if isinstance(op, str) else op.items()
    image = Image.fromarray(pixels.squeeze(axis=2) if pixels.shape[2] == 1 else pixels)
    return OPERATIONS[name](image, **arguments).tobytes()


def weak(draw, pixels):
    side = len(pixels)
    padding = side // 8
    if draw["mirror"]:
        pixels = pixels[:, ::-1]
    padded = np.pad(pixels, ((padding, padding), (padding, padding), (0, 0)), mode="reflect")
    x, y = padding + draw["dx"], padding + draw["dy"]
    return padded[y : y + side, x : x + side].tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES, help="folder to write to")
    out = parser.parse_args().out

    images = [draw(side, channels) for draw, side, channels in IMAGES]
    ops = list(arguments())
    index = {
        "pillow": PIL.__version__,
        "images": [
            {"name": draw.__name__, "shape": {"side": side, "channels": channels}}
            for draw, side, channels in IMAGES
        ],
        "ops": ops,
        "weak": WEAK,
    }
    blob = b"".join(
        [image.tobytes() for image in images]
        + [apply(op, image) for op in ops for image in images]
        + [weak(draw, image) for draw in WEAK for image in images]
    )
    out.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(
        f'  "{key}": '
        + (
            "[\n" + ",\n".join(f"    {json.dumps(item)}" for item in value) + "\n  ]"
            if isinstance(value, list)
            else json.dumps(value)
        )
        for key, value in index.items()
    )
    (out / "augment.json").write_text("{\n" + lines + "\n}\n")
    (out / "augment.z").write_bytes(zlib.compress(blob, 9))


if __name__ == "__main__":
    main()
