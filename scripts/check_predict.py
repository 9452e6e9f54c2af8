#!/usr/bin/env python3
"""Compare the Python program in docs/pictures.md with `fedanchor predict`:  python scripts/check_predict.py PROGRAM

PROGRAM is the `fedanchor` program. For every fit, and for grey and coloured pictures, a small model is trained and
exported; both must then give the same classes for pictures of several sizes, proportions and formats. The Python
program is taken from the page, so that the page cannot go stale. `make test` calls this in a virtual environment with
Pillow, NumPy and onnxruntime.
"""
import csv
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from PIL import Image

PAGE = Path(__file__).parent.parent / "docs" / "pictures.md"
CLASSES = 3
SIZE = 24
# Differences of the confidence: two decoders of JPEG differ by 1 or 2 of 255.
TOLERANCE = {".png": 0.001, ".jpg": 0.03}
# Square, long and high, smaller than the model's images and much larger, and the model's own size.
SIZES = [(24, 24), (64, 64), (200, 90), (90, 200), (37, 301), (17, 13), (640, 480), (2, 50), (25, 24), (301, 300)]
# A short run: what it learns is of no interest, but outputs must differ from picture to picture.
BRIEF = "rounds=1 pretrain.epochs=40 pretrain.fitted=0 client.epochs=1 client.per_round=1 compare=false".split()


def check(condition, message):
    if not condition:
        raise SystemExit(f"error: {message}")


def program_of_page():
    blocks = PAGE.read_text(encoding="utf-8").split("```python\n")[1:]
    found = [block.split("```")[0] for block in blocks if "onnxruntime.InferenceSession" in block]
    check(len(found) == 1, f"{PAGE}: expected one Python program that uses onnxruntime, found {len(found)}")
    return found[0]


def picture(random, kind, width, height, grey):
    """Stripes that are wider for later classes, over a colour, with edges and noise for the filter."""
    x, y = numpy.meshgrid(numpy.arange(width) / width, numpy.arange(height) / height)
    angle = random.uniform(0, numpy.pi)
    stripes = numpy.sin((x * numpy.cos(angle) + y * numpy.sin(angle)) * 60 / (1 + 2 * kind)) > 0
    colour = random.uniform(40, 215, 3)
    pixels = colour + 60 * (stripes[..., None] - 0.5) * random.uniform(0.5, 1.5, 3)
    pixels = (pixels + random.normal(0, 12, pixels.shape)).clip(0, 255).astype(numpy.uint8)
    return Image.fromarray(pixels[..., 0] if grey else pixels)


def write_set(random, folder, grey):
    """Labelled, unlabelled and test pictures."""
    parts = {"labelled": 8, "unlabelled": 10, "test": 4}
    for part, count in parts.items():
        for kind in range(CLASSES):
            at = folder / part if part == "unlabelled" else folder / part / "abc"[kind]
            at.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                width, height = SIZES[(number + kind) % len(SIZES)]
                picture(random, kind, width, height, grey).save(at / f"{kind}{number}.png")


def write_new(random, folder, grey):
    """Pictures to predict: of every size and kind of file."""
    folder.mkdir()
    for number, (width, height) in enumerate(SIZES * CLASSES):
        image = picture(random, number % CLASSES, width, height, grey)
        image.save(folder / f"{number:02}.png")
        if min(width, height) > 60:
            image.save(folder / f"{number:02}.jpg", quality=92)
    # A model of grey images sees colours as grey, and one of coloured images grey as colours.
    for number, (width, height) in enumerate(SIZES):
        image = picture(random, number % CLASSES, width, height, not grey)
        image.save(folder / f"other-{number}.png")
        clear = picture(random, 0, width, height, True)
        image.putalpha(clear)
        image.save(folder / f"clear-{number}.png")
    image = picture(random, 1, 120, 80, False)
    image.quantize(16).save(folder / "palette.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    image.save(folder / "turned.png", exif=turned)
    image.save(folder / "turned.jpg", exif=turned, quality=92)


def rows(text):
    return {row["path"]: (row["class"], float(row["confidence"])) for row in csv.DictReader(io.StringIO(text))}


def compare(program, folder, fit):
    def call(*arguments):
        environment = {**os.environ, "FEDANCHOR_CACHE": str(folder.parent / "cache")}
        done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
        check(done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}")
        return done.stdout

    settings = [part for key in BRIEF for part in ("--set", key)]
    call(program, "init", ".", "--yes", "--size", str(SIZE), "--fit", fit, "--out", f"{fit}.toml")
    call(program, "run", f"{fit}.toml", "--out", fit, *settings)
    call(program, "export", fit, "--raw-input", "--out", f"{fit}.onnx")
    paths = sorted(str(path.relative_to(folder)) for path in (folder / "new").iterdir())
    own = rows(call(program, "predict", fit, *paths, "--format", "csv"))
    found = rows(call(sys.executable, "../program.py", f"{fit}.onnx", *paths))
    check(list(own) == paths and list(found) == paths, f"{folder.name} {fit}: {list(own)}, {list(found)}")
    confidences = numpy.array([confidence for _, confidence in own.values()])
    what = f"{folder.name} pictures, {fit}"
    check(confidences.std() > 0.02, f"{what}: the confidence is almost the same for all pictures")
    check(len({name for name, _ in own.values()}) > 1, f"{what}: all pictures have the same class")
    far = {ending: 0.0 for ending in TOLERANCE}
    for path in paths:
        (name, confidence), (other, its) = own[path], found[path]
        ending = path[-4:]
        far[ending] = max(far[ending], abs(confidence - its))
        check(name == other, f"{what}: {path} is {name} ({confidence}) for `predict` and {other} ({its}) elsewhere")
        check(far[ending] <= TOLERANCE[ending], f"{what}: {path}: {confidence} for `predict` and {its} elsewhere")
    distances = ", ".join(f"{distance:.1e} for {ending}" for ending, distance in far.items())
    print(f"{what}: {len(paths)} classes agree; confidences differ by at most {distances}", flush=True)


def main():
    check(len(sys.argv) == 2, "usage: check_predict.py PROGRAM")
    program = str(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "program.py").write_text(program_of_page(), encoding="utf-8")
        for colours in ("grey", "coloured"):
            random = numpy.random.default_rng(1)
            write_set(random, root / colours, colours == "grey")
            write_new(random, root / colours / "new", colours == "grey")
            for fit in ("stretch", "crop", "pad"):
                compare(program, root / colours, fit)


if __name__ == "__main__":
    main()
