#!/usr/bin/env python3
"""Make the sample that is embedded in the program: a balanced subset of MNIST.

It has the first 600 images per class of the training file and the first 100 per class of the test
file, in file order. They are written without labels, one of each class in turn, so that image i is
of class i % 10 and every prefix is balanced: first the 6,000 training images, then the 1,000 test
images, 28 x 28 bytes each, as one zlib stream.

Usage: make_sample.py FOLDER OUTPUT

FOLDER contains the four official files, with or without .gz (`fedanchor data get mnist` puts them
into data/mnist); OUTPUT is crates/data/assets/mnist.zlib. The same input gives the same bytes.
"""

import gzip
import struct
import sys
import zlib
from pathlib import Path

CLASSES = 10
SIDE = 28


def read_idx(path: Path, *shape: int) -> tuple[int, bytes]:
    """The number of items and the bytes of an IDX file whose items have this shape."""
    plain = path.with_suffix("")
    content = plain.read_bytes() if plain.exists() else gzip.decompress(path.read_bytes())
    header = 4 * (2 + len(shape))
    magic, count, *found = struct.unpack(f">{header // 4}I", content[:header])
    if magic != 0x0801 + len(shape) or tuple(found) != shape:
        sys.exit(f"error: {path}: not an IDX file of bytes with items of shape {shape}")
    return count, content[header:]


def balanced(folder: Path, split: str, per_class: int) -> bytes:
    """The first `per_class` images of every class, one of each class in turn."""
    _, images = read_idx(folder / f"{split}-images-idx3-ubyte.gz", SIDE, SIDE)
    count, labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz")
    of_class = [[i for i in range(count) if labels[i] == c][:per_class] for c in range(CLASSES)]
    if any(len(members) < per_class for members in of_class):
        sys.exit(f"error: {folder}: a class has fewer than {per_class} images in `{split}`")
    size = SIDE * SIDE
    return b"".join(images[i * size : (i + 1) * size] for row in zip(*of_class) for i in row)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, output = Path(sys.argv[1]), Path(sys.argv[2])
    pixels = balanced(folder, "train", 600) + balanced(folder, "t10k", 100)
    output.write_bytes(zlib.compress(pixels, 9))


if __name__ == "__main__":
    main()
