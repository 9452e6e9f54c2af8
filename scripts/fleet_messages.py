"""The messages between a coordinator and its nodes, for scripts that replace one of them.

A request to train and its reply are byte strings, each preceded by its length; broadcasts and answers are safetensors files with
a header in their metadata. Like `make_message_seeds.py`, this is written without code of the project.
"""

import json
import struct
from typing import Any

import numpy as np

TYPES = {"F32": "<f4", "F64": "<f8", "U16": "<u2"}
# The head that only the server trains: it is broadcast, but not sent back.
SERVER_ONLY = "model/anchor."


def split_parts(whole: bytes) -> list[memoryview]:
    parts, rest = [], memoryview(whole)
    while rest:
        (length,) = struct.unpack("<Q", rest[:8])
        parts.append(rest[8 : 8 + length])
        rest = rest[8 + length :]
    return parts


def join_parts(parts: list[bytes]) -> bytes:
    return b"".join(piece for part in parts for piece in (struct.pack("<Q", len(part)), part))


def decode(message: memoryview) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the tensors, which share the message's memory."""
    (length,) = struct.unpack("<Q", message[:8])
    index, data = json.loads(bytes(message[8 : 8 + length])), message[8 + length :]
    header = json.loads(index.pop("__metadata__")["fedanchor"])
    tensors = {}
    for name, entry in index.items():
        start, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[start:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return header, tensors


def encode(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    """A message of tensors in single precision."""
    data = (np.ascontiguousarray(tensor, "<f4").data.cast("B") for tensor in tensors.values())
    return b"".join([_index(header, tensors), *data])


def _index(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    index: dict[str, Any] = {"__metadata__": {"fedanchor": json.dumps(header)}}
    at = 0
    for name, tensor in tensors.items():
        index[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + 4 * tensor.size]}
        at += 4 * tensor.size
    text = json.dumps(index).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def trained(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of a broadcast that a client sends back."""
    return {name: tensor for name, tensor in tensors.items() if name.startswith("model/") and not name.startswith(SERVER_ONLY)}


class Echo:
    """A client that answers at once, with the model that it received."""

    def __init__(self, name: str, samples: int = 100) -> None:
        self.name = name
        self.samples = samples

    def join(self, body: bytes) -> bytes:
        terms = json.loads(body)
        clients = [{"name": self.name, "samples": self.samples}]
        return json.dumps({"protocol": terms["protocol"], "version": terms["version"], "clients": clients}).encode()

    def train(self, body: bytes) -> bytes:
        broadcast, request = split_parts(body)
        header, tensors = decode(broadcast)
        ((_, number),) = json.loads(bytes(request))["clients"]
        header |= {"kind": "update", "client": number, "samples": self.samples, "kept": self.samples}
        header |= {"fix_loss": 1.0, "mix_loss": 1.0}
        return join_parts([encode(header, trained(tensors))])

    def respond(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        """Respond on the node's socket."""
        return 200, self.join(body) if target == "/v1/join" else self.train(body)
