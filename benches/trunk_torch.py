"""EfficientNet-Lite0 in PyTorch, on the weights that `make trunks` sets up; see trunk.py.

    python3 benches/trunk_torch.py WEIGHTS eager|frozen|optimised|compiled contiguous_format|channels_last

One thread. Every line on standard input names a file of pixels, [count, 224, 224, 3]: its pictures are encoded in one
call, the seconds of which are printed, and the vectors are written beside it in half precision, with the ending
`torch`. Frozen and optimised are TorchScript: `torch.jit.freeze` alone, and `optimize_for_inference` after it; compiled
is `torch.compile`, which generates C++.
"""
import json
import struct
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

SIDE = 224
# Kernel, stride of the first block, channels inside a block per channel that enters it, channels, blocks.
STAGES = [(3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3), (5, 1, 6, 112, 3), (5, 2, 6, 192, 4), (3, 1, 6, 320, 1)]


class Same(nn.Conv2d):
    """A convolution without bias whose padding depends on the side of its images, as in TensorFlow."""

    def __init__(self, before, after, kernel, stride, groups, side):
        zeros = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        self.even = zeros % 2 == 0
        super().__init__(before, after, kernel, stride, zeros // 2 if self.even else 0, groups=groups, bias=False)
        self.zeros = [zeros // 2, zeros - zeros // 2] * 2

    def forward(self, x):
        return super().forward(x if self.even else functional.pad(x, self.zeros))


def norm(channels):
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    def __init__(self, before, after, kernel, stride, expansion, side):
        super().__init__()
        inside = before * expansion
        self.expands, self.adds = expansion > 1, stride == 1 and before == after
        if self.expands:
            self.expand, self.bn1 = Same(before, inside, 1, 1, 1, side), norm(inside)
        self.depthwise, self.bn2 = Same(inside, inside, kernel, stride, inside, side), norm(inside)
        self.project, self.bn3 = Same(inside, after, 1, 1, 1, side // stride), norm(after)

    def forward(self, x):
        y = functional.relu6(self.bn1(self.expand(x)), inplace=True) if self.expands else x
        y = functional.relu6(self.bn2(self.depthwise(y)), inplace=True)
        y = self.bn3(self.project(y))
        return y.add_(x) if self.adds else y


class Lite0(nn.Module):
    def __init__(self, normalisation, layout):
        super().__init__()
        self.layout, side, channels = layout, SIDE // 2, 32
        self.scale = [1 / (255 * std) for std in normalisation["std"]]
        self.shift = [mean / std for mean, std in zip(normalisation["mean"], normalisation["std"])]
        self.conv1, self.bn1 = Same(3, channels, 3, 2, 1, SIDE), norm(channels)
        for stage, (kernel, stride, expansion, width, count) in enumerate(STAGES, start=1):
            blocks = []
            for _ in range(count):
                blocks.append(Block(channels, width, kernel, stride, expansion, side))
                side, channels, stride = side // stride, width, 1
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
        self.conv2, self.bn2 = Same(channels, 1280, 1, 1, 1, side), norm(1280)

    def forward(self, pixels):
        x = pixels.float() * torch.tensor(self.scale) - torch.tensor(self.shift)
        x = x.permute(0, 3, 1, 2).contiguous(memory_format=self.layout)
        x = functional.relu6(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.layer7(self.layer6(self.layer5(x)))
        return functional.relu6(self.bn2(self.conv2(x)), inplace=True).mean((2, 3)).half()


def load(path, layout):
    data = path.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    head, numbers = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    stated = json.loads(head.pop("__metadata__")["fedanchor.trunk"])
    tensors = {}
    for name, about in head.items():
        start, end = about["data_offsets"]
        tensors[name] = torch.frombuffer(numbers[start:end], dtype=torch.float32).view(about["shape"])
    model = Lite0(stated["normalisation"], layout)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if unexpected or not all(name.endswith("num_batches_tracked") for name in missing):
        sys.exit(f"{path} has other tensors than EfficientNet-Lite0")
    return model.to(memory_format=layout).eval()


def main():
    weights, kind, layout = Path(sys.argv[1]), sys.argv[2], getattr(torch, sys.argv[3])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model = load(weights, layout)
    example = torch.zeros(5, SIDE, SIDE, 3, dtype=torch.uint8)
    with torch.no_grad():
        if kind in ("frozen", "optimised"):
            model = torch.jit.freeze(torch.jit.trace(model, example))
        if kind == "optimised":
            model = torch.jit.optimize_for_inference(model)
        if kind == "compiled":
            torch._inductor.config.freezing = True  # weights are constants, which it may rearrange
            model = torch.compile(model)
        for line in sys.stdin:
            path = Path(line.strip())
            pixels = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).view(-1, SIDE, SIDE, 3)
            start = time.perf_counter()
            vectors = model(pixels)
            seconds = time.perf_counter() - start
            path.with_suffix(".torch").write_bytes(vectors.numpy().tobytes())
            print(seconds, flush=True)


if __name__ == "__main__":
    main()
