#!/usr/bin/env python3
"""Make the seeds for fuzzing: a small file of every kind that the decoders read.

    make target/fixtures/ready
    target/fixtures/bin/python scripts/make_fuzz_seeds.py

Writes crates/data/fuzz/seeds/FAMILY/NAME, with the usual programs for such files rather than code of
this project. Those in the repository were made with Python 3.11, numpy 2.4.6, scipy 1.17.1 and
Pillow 13.0.0.
"""

import gzip
import io
import pathlib
import struct
import tarfile

import numpy as np
import scipy.io
from PIL import Image

SEEDS = pathlib.Path(__file__).parent.parent / "crates/data/fuzz/seeds"


def write(name, content):
    path = SEEDS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def cifar():
    image = np.arange(3072, dtype=np.uint8).reshape(1, 3072)
    write("cifar/ten.bin", b"\x06" + image.tobytes())
    write("cifar/hundred.bin", b"\x0b\x2a" + image.tobytes())


def mat():
    images = {"X": np.arange(24, dtype=np.uint8).reshape(2, 2, 3, 2), "y": np.array([[10.0], [3.0]])}
    for name, packed in (("plain", False), ("packed", True)):
        file = io.BytesIO()
        scipy.io.savemat(file, images | {"info": "none"}, do_compression=packed)
        content = bytearray(file.getvalue())
        content[:116] = b"MATLAB 5.0 MAT-file".ljust(116)  # without the date
        write(f"mat/{name}.mat", content)


def idx():
    images = bytes([0, 0, 8, 3]) + struct.pack(">III", 3, 2, 2) + bytes(range(12))
    labels = bytes([0, 0, 8, 1]) + struct.pack(">I", 3) + bytes([7, 0, 9])
    for name, content in (("images", images), ("labels", labels)):
        write(f"idx/{name}", content)
        write(f"idx/{name}.gz", gzip.compress(content, mtime=0))


def npz():
    first = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    labels = np.array([1, 0])
    for name, save in (("plain", np.savez), ("packed", np.savez_compressed)):
        file = io.BytesIO()
        save(file, X=first, y=labels)
        write(f"npz/{name}.npz", file.getvalue())
    # The arrays alone, one after the other; they are packed after mutation.
    for name, images, labels in (
        ("last", first, labels),
        ("first", first.reshape(2, 3, 2, 2), labels.astype(">f4").reshape(2, 1)),
        ("grey", first[:, :, :, 0], labels.astype(np.uint8)),
    ):
        file = io.BytesIO()
        np.save(file, np.ascontiguousarray(images))
        np.save(file, labels)
        write(f"npz/{name}.npy", file.getvalue())


def pictures():
    y, x = np.mgrid[0:9, 0:9]
    colour = Image.fromarray(np.stack([x * 28, y * 28, x * y * 3], 2).astype(np.uint8))
    grey, clear = colour.convert("L"), colour.convert("RGBA")
    clear.putalpha(grey)
    wide = Image.fromarray((x * y * 1000).astype(np.uint16))
    saved = {
        "colour.png": (colour, {}),
        "clear.png": (clear, {}),
        "grey.png": (grey, {}),
        "wide.png": (wide, {}),
        "bits.png": (grey.convert("1"), {}),
        "palette.png": (colour.quantize(5), {"transparency": 1}),
        "profile.png": (grey, {"icc_profile": b"profile" * 9, "dpi": (72, 72), "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}),
        "colour.jpg": (colour, {"quality": 60}),
        "grey.jpg": (grey, {"quality": 60}),
        "progressive.jpg": (colour, {"quality": 60, "progressive": True}),
        "restart.jpg": (colour.resize((33, 17)), {"quality": 30, "restart_marker_blocks": 1, "subsampling": "4:2:0"}),
        "four.jpg": (colour.convert("CMYK"), {"quality": 60}),
        "colour.bmp": (colour, {}),
        "palette.bmp": (colour.quantize(5), {}),
        "palette.gif": (colour.quantize(5), {"transparency": 1}),
        "film.gif": (grey, {"save_all": True, "append_images": [grey.rotate(90)]}),
        "lossless.webp": (clear, {"lossless": True}),
        "lossy.webp": (colour, {"quality": 60}),
        "clear.webp": (clear, {"quality": 60}),
        "colour.tif": (colour, {"compression": "tiff_lzw"}),
        "clear.tif": (clear, {"compression": "tiff_deflate"}),
        "wide.tif": (wide, {}),
        "page.tif": (grey.convert("1"), {"compression": "group4"}),
        "lossy.tif": (colour, {"compression": "jpeg"}),
        "colour.ppm": (colour, {}),
        "wide.pgm": (wide, {}),
        "bits.pbm": (grey.convert("1"), {}),
    }
    for name, (image, options) in saved.items():
        file = io.BytesIO()
        ending = name.rsplit(".")[-1]
        form = {"jpg": "jpeg", "tif": "tiff", "pgm": "ppm", "pbm": "ppm"}.get(ending, ending)
        family = {"png": "png", "jpeg": "jpeg", "tiff": "tiff", "ppm": "tiff"}.get(form, "bitmap")
        image.save(file, form, **options)
        write(f"{family}/{name}", file.getvalue())


def archive():
    for name, form, folder in (
        ("plain", tarfile.USTAR_FORMAT, "set"),
        ("long", tarfile.GNU_FORMAT, "set/" + "long" * 30),
        ("pax", tarfile.PAX_FORMAT, "set/\u00e9" + "long" * 30),
    ):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as tar:
            entry = tarfile.TarInfo("set")
            entry.type = tarfile.DIRTYPE
            tar.addfile(entry)
            for number in range(2):
                entry = tarfile.TarInfo(f"{folder}/{number}.bin")
                entry.size = 5
                tar.addfile(entry, io.BytesIO(b"first"))
        # Two empty blocks end an archive; tarfile adds more.
        content = file.getvalue().rstrip(b"\0")
        content += bytes(-len(content) % 512 + 1024)
        write(f"archive/{name}.tar", content)
        write(f"archive/{name}.tar.gz", gzip.compress(content, mtime=0))


for make in (cifar, mat, idx, npz, pictures, archive):
    make()
