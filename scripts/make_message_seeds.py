#!/usr/bin/env python3
"""Writes the seeds of the message decoders' fuzz targets:  python3 scripts/make_message_seeds.py

Messages for the network of two tensors in crates/core/fuzz/src/decoders.rs, encoded without code of the project, so that
the decoders are tested against the protocol and not only against the encoder.
"""
import json
import pathlib
import struct

SEEDS = pathlib.Path(__file__).parent.parent / "crates/core/fuzz/seeds"
SIZES = {"F32": ("f", 4), "F64": ("d", 8), "U16": ("H", 2)}
MODEL = {"stem.weight": [2, 1, 3, 3], "norm.bias": [2]}


def encode(header, tensors):
    """safetensors: the length of the JSON index, the index, the data; `tensors` are (name, type, shape)."""
    index, data = {"__metadata__": {"fedanchor": json.dumps(header)}}, b""
    for name, kind, shape in tensors:
        letter, size = SIZES[kind]
        count = 1
        for length in shape:
            count *= length
        first = 1 if kind == "F64" else 0  # shares of classes are above 0
        values = [number % 2 if kind == "U16" else number / 8 for number in range(first, first + count)]
        start, data = len(data), data + struct.pack(f"<{count}{letter}", *values)
        index[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(index).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def model(group):
    return [(f"{group}/{name}", "F32", shape) for name, shape in MODEL.items()]


def write(name, kind, tensors, **more):
    header = {"protocol": 1, "round": 3, "client": 7, "method": "fedanchor", "kind": kind, **more}
    path = SEEDS / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(header, tensors))


write("broadcast/model", "broadcast", model("model"))
means = [("anchors/means", "F32", [2, 4]), ("thresholds", "F64", [2])]
write("broadcast/means", "broadcast", model("model") + means)
latents = [("anchors/latents", "F32", [3, 4]), ("anchors/labels", "U16", [3])]
shares = [("anchors/means", "F32", [2, 4]), ("class_shares", "F64", [2])]
write("broadcast/shares", "broadcast", model("model") + shares)
write("broadcast/latents", "broadcast", model("model") + latents)
extra = model("extra.sigma") + model("extra.helper.3")
write("broadcast/extra", "broadcast", model("model") + extra)
write("answer/update", "update", model("model"), samples=10, kept=5, fix_loss=0.25, mix_loss=None)
losses = {"fix_loss": 0.25, "mix_loss": 0.5}
write("answer/labels", "update", model("model"), samples=10, kept=5, labels=[6, 4], **losses)
write("answer/nothing", "nothing-kept", [], samples=10)
write("answer/nothing-labels", "nothing-kept", [], samples=10, labels=[0, 10])
write("answer/failed", "failed", [], reason="out of memory")
