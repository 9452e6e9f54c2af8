"""A trained network as a module of torch."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

#: The number types of ONNX.
TYPES = {1: torch.float32, 2: torch.uint8, 7: torch.int64, 10: torch.float16}

#: The outputs that a network may have.
OUTPUTS = ("logits", "probabilities", "latents", "scores")


class Network(nn.Module):
    """Computes the operations of the graph that `fedanchor export` writes, one after the other.

    Its parameters are those of the trained network, so that it can be trained further.
    """

    def __init__(self, nodes: str, constants: list[tuple[str, int, list[int], bytes]]) -> None:
        super().__init__()
        self.nodes: list[dict[str, Any]] = json.loads(nodes)
        for name, kind, shape, values in constants:
            tensor = torch.frombuffer(bytearray(values), dtype=TYPES[kind]).reshape(shape).clone()
            trained = kind == 1 and "." in name and not name.startswith(("pixel.", "features.", "latents."))
            statistics = name.endswith(("running_mean", "running_var"))
            if trained and not statistics:
                self.register_parameter(_attribute(name), nn.Parameter(tensor))
            else:
                self.register_buffer(_attribute(name), tensor)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """From 8-bit pixels `[count, side, side, channels]`."""
        values = {"images": images}
        for node in self.nodes:
            inputs = [values[name] if name in values else getattr(self, _attribute(name)) for name in node["inputs"]]
            values[node["output"]] = _compute(node["op"], inputs, node["attributes"])
        return {name: values[name] for name in OUTPUTS if name in values}


def _attribute(name: str) -> str:
    """Names of parameters have no dots."""
    return name.replace(".", "_")


def _compute(op: str, inputs: list[torch.Tensor], attributes: dict[str, Any]) -> torch.Tensor:
    x, *rest = inputs
    match op:
        case "Cast":
            return x.to(TYPES[attributes["to"]])
        case "Conv":
            top, left, bottom, right = attributes["pads"]
            if (top, left) != (bottom, right):
                x, top, left = F.pad(x, (left, right, top, bottom)), 0, 0
            bias = rest[1] if len(rest) > 1 else None
            strides, groups = attributes["strides"], attributes["group"]
            return F.conv2d(x, rest[0], bias, strides, (top, left), groups=groups)
        case "BatchNormalization":
            weight, bias, mean, variance = rest
            return F.batch_norm(x, mean, variance, weight, bias, eps=attributes["epsilon"])
        case "InstanceNormalization":
            weight, bias = rest
            return F.instance_norm(x, weight=weight, bias=bias, eps=attributes["epsilon"])
        case "Shape":
            return torch.tensor(x.shape)
        case "Reshape":
            shape = [size if size != 0 else x.shape[at] for at, size in enumerate(rest[0].tolist())]
            return x.reshape(shape)
        case "Relu":
            return F.relu(x)
        case "Clip":
            return x.clamp(rest[0], rest[1])
        case "Add":
            return x + rest[0]
        case "Sub":
            return x - rest[0]
        case "Mul":
            return x * rest[0]
        case "Div":
            return x / rest[0]
        case "Max":
            return torch.maximum(x, rest[0])
        case "MatMul":
            return x @ rest[0]
        case "Gemm":
            return F.linear(x, rest[0], rest[1])
        case "MaxPool":
            top, left, _, _ = attributes["pads"]
            return F.max_pool2d(x, attributes["kernel_shape"], attributes["strides"], (top, left))
        case "GlobalAveragePool":
            return x.mean((2, 3), keepdim=True)
        case "Flatten":
            return x.flatten(1)
        case "Softmax":
            return x.softmax(attributes["axis"])
        case "ReduceL2":
            return x.norm(dim=attributes["axes"], keepdim=bool(attributes["keepdims"]))
        case "Transpose":
            return x.permute(attributes["perm"])
    raise NotImplementedError(f"the operation {op}")
