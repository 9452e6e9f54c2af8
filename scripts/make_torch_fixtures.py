#!/usr/bin/env python3
"""Make the fixtures for testing networks, losses and training steps against PyTorch.

    make target/torchvision/ready
    target/torchvision/bin/python scripts/make_torch_fixtures.py

Writes crates/core/tests/fixtures/torch.safetensors; the tests are in crates/core/tests/parity. The
file in the repository was made with PyTorch 2.11.0 on x86-64.

The networks and losses are implemented here independently, from their descriptions and with
PyTorch's layers, optimiser and clipping; the losses are plain loops. Two decisions:

- Weights are not stored: ResNet-18 has 11 million. The script and the tests fill them, and the
  inputs, with an integer hash of name and position, whose values are exact in single precision. A
  seeded generator was rejected: the tests would have to reimplement it.
- Everything is computed in double precision and stored in single, so that the expected values have
  no rounding error and tolerances account for the tested code alone.
"""

import itertools
import json
import math
import pathlib
import struct

import torch
from torch.nn import functional

FIXTURE = pathlib.Path(__file__).parent.parent / "crates/core/tests/fixtures/torch.safetensors"

CLASSES = 10
LATENT_DIM = 16
GROUPS = 8
BATCH = 3  # images per forward pass
WORD = 0xFFFFFFFF


# Filling: numbers hashed from names.


def hashed(text, count):
    """`count` numbers of 24 bits. All products stay below 2^63, so none overflows."""
    key = 0
    for byte in text.encode():
        key = (key * 31 + byte) & WORD
    h = (torch.arange(count, dtype=torch.int64) * 0x9E3779B1 + key) & WORD
    for _ in range(2):
        h = ((h ^ (h >> 16)) * 0x1B56C4F5) & WORD
    return (h ^ (h >> 16)) >> 8


def noise(text, *shape):
    """Single-precision numbers in [-1, 1), exact multiples of 2^-23."""
    whole = hashed(text, math.prod(shape)) - 2**23
    return (whole.float() / 2**23).reshape(shape)


def labels(text, count):
    return hashed(text, count) % CLASSES


def filled(filling, name, shape):
    """An entry of a network: `filling` identifies the client, `name` the entry."""
    u = noise(f"{filling}/{name}", *shape)
    if len(shape) > 1:
        fan_in = math.prod(shape[1:])
        return u * torch.tensor(math.sqrt(3 / fan_in), dtype=torch.float32)
    if name.endswith("running_var"):
        return 1 + u / 2
    if name.endswith("weight"):  # of a norm
        return 1 + u / 4
    return u / 4  # biases and running means


# The networks.


class Network:
    """A network whose entries are created and filled in the first pass."""

    def __init__(self, body, norm="batch", latent_stage=None, filling="0"):
        self.body, self.kind, self.latent_stage, self.filling = body, norm, latent_stage, filling
        self.training = False
        self.weights, self.statistics = {}, {}

    def weight(self, name, *shape):
        if name not in self.weights:
            value = filled(self.filling, name, shape).double()
            self.weights[name] = value.requires_grad_()
        return self.weights[name]

    def statistic(self, name, *shape):
        if name not in self.statistics:
            self.statistics[name] = filled(self.filling, name, shape).double()
        return self.statistics[name]

    def conv(self, x, name, to, kernel, stride):
        weight = self.weight(f"{name}.weight", to, x.shape[1], kernel, kernel)
        return functional.conv2d(x, weight, stride=stride, padding=kernel // 2)

    def norm(self, x, name):
        channels = x.shape[1]
        weight = self.weight(f"{name}.weight", channels)
        bias = self.weight(f"{name}.bias", channels)
        if self.kind == "group":
            return functional.group_norm(x, GROUPS, weight, bias, eps=1e-5)
        mean = self.statistic(f"{name}.running_mean", channels)
        var = self.statistic(f"{name}.running_var", channels)
        return functional.batch_norm(
            x, mean, var, weight, bias, training=self.training, momentum=0.1, eps=1e-5
        )

    def linear(self, x, name, to):
        weight = self.weight(f"{name}.weight", to, x.shape[1])
        return functional.linear(x, weight, self.weight(f"{name}.bias", to))

    def __call__(self, images):
        """Logits, latents and pooled features."""
        end, stages = self.body(self, images.double())
        pooled = pool(end)
        read = pooled if self.latent_stage is None else pool(stages[self.latent_stage - 1])
        return {
            "logits": self.linear(pooled, "classifier", CLASSES),
            "latents": self.linear(read, "anchor", LATENT_DIM),
            "pooled": pooled,
        }


def pool(x):
    return x.mean(dim=(2, 3))


def post_block(net, x, name, to, stride):
    """Convolution, norm, ReLU, convolution, norm; ReLU after the sum."""
    y = net.norm(net.conv(x, f"{name}.conv1", to, 3, stride), f"{name}.bn1").relu()
    y = net.norm(net.conv(y, f"{name}.conv2", to, 3, 1), f"{name}.bn2")
    if stride != 1 or x.shape[1] != to:
        x = net.norm(net.conv(x, f"{name}.downsample.0", to, 1, stride), f"{name}.downsample.1")
    return (x + y).relu()


def pre_block(net, x, name, to, stride):
    """Norm and ReLU before each convolution; a convolved shortcut uses the activated input."""
    active = net.norm(x, f"{name}.bn1").relu()
    if stride != 1 or x.shape[1] != to:
        x = net.conv(active, f"{name}.shortcut", to, 1, stride)
    y = net.conv(active, f"{name}.conv1", to, 3, stride)
    y = net.conv(net.norm(y, f"{name}.bn2").relu(), f"{name}.conv2", to, 3, 1)
    return x + y


def staged(net, x, block, widths, blocks):
    """Stages of blocks; every stage but the first halves the image."""
    outputs = []
    for stage, to in enumerate(widths):
        for index in range(blocks):
            stride = 2 if stage > 0 and index == 0 else 1
            x = block(net, x, f"layer{stage + 1}.{index}", to, stride)
        outputs.append(x)
    return outputs


def resnet18(net, x):
    x = net.norm(net.conv(x, "conv1", 64, 3, 1), "bn1").relu()
    stages = staged(net, x, post_block, [64, 128, 256, 512], 2)
    return stages[-1], stages


def preactivation(stem, stem_stride, widths, blocks):
    def body(net, x):
        x = net.conv(x, "conv1", stem, 3, stem_stride)
        stages = staged(net, x, pre_block, widths, blocks)
        return net.norm(stages[-1], "bn").relu(), stages

    return body


BODIES = {
    "resnet18": resnet18,
    "resnet18-pre": preactivation(64, 1, [64, 128, 256, 512], 2),
    "wrn28x2": preactivation(16, 1, [32, 64, 128], 4),
    "small": preactivation(16, 2, [16, 32, 64], 1),
}


# Losses, as loops over one client's batch.


def cross_entropy_each(logits, classes):
    """-log of the probability of the class of each sample."""
    return [-(row[c] - torch.log(torch.exp(row).sum())) for row, c in zip(logits, classes)]


def cross_entropy(logits, classes):
    each = cross_entropy_each(logits, classes)
    return sum(each) / len(each)


def mix_loss(logits, fix, mix, lam):
    pairs = zip(lam, cross_entropy_each(logits, fix), cross_entropy_each(logits, mix))
    return sum(l * to_fix + (1 - l) * to_mix for l, to_fix, to_mix in pairs) / len(fix)


def label_contrastive(latents, of, classes, tau, self_pairs, denominator, divide_by):
    """Mean over classes of -log(sum over pairs of the class / sum over pairs that differ)."""
    batch = range(len(of))

    def pair(i, j):
        cosine = (latents[i] * latents[j]).sum() / (latents[i].norm() * latents[j].norm())
        return torch.exp(cosine / tau)

    def apart(first):
        return sum(pair(i, j) for i in first for j in batch if of[i] != of[j])

    terms = []
    for c in range(classes):
        members = [i for i in batch if of[i] == c]
        together = [pair(i, j) for i in members for j in members if self_pairs or i != j]
        if together:
            below = apart(batch) if denominator == "batch" else apart(members)
            terms.append(-torch.log(sum(together) / below))
    return sum(terms) / (len(terms) if divide_by == "present" else classes)


# Fixtures, by name.


def networks():
    """Outputs with running statistics and with batch statistics, which update the running ones."""
    cases = [(body, norm, size, None) for body in BODIES for norm in ("batch", "group")
             for size in ((16, 3), (28, 1), (32, 3))]
    cases += [("resnet18", "batch", (16, 3), 2), ("small", "batch", (16, 3), 2)]
    for body, norm, (side, channels), latent_stage in cases:
        case = f"networks/{body}/{norm}/{side}x{channels}"
        case += f"/stage{latent_stage}" if latent_stage else ""
        net = Network(BODIES[body], norm, latent_stage)
        images = noise("images", BATCH, channels, side, side)
        with torch.no_grad():
            for mode in ("running", "batch"):
                net.training = mode == "batch"
                for what, value in net(images).items():
                    yield f"{case}/{mode}/{what}", value
        # The smallest images show most clearly whether the running variance is unbiased.
        if side == 16 and latent_stage is None:
            for name, value in net.statistics.items():
                yield f"{case}/after/{name}", value


def losses():
    """Values and gradients for two clients, and for every variant of the contrastive loss."""
    for client in range(2):
        logits = (3 * noise(f"logits {client}", 5, CLASSES)).double().requires_grad_()
        fix, mix = labels(f"fix {client}", 5), labels(f"mix {client}", 5)
        lam = ((noise(f"lambda {client}", 5) + 1) / 2).double()
        for what, loss in (
            ("cross_entropy", cross_entropy(logits, fix)),
            ("mix_loss", mix_loss(logits, fix, mix, lam)),
        ):
            yield f"losses/{what}/{client}/value", loss.reshape(1)
            yield f"losses/{what}/{client}/gradient", torch.autograd.grad(loss, logits)[0]

    of = [0, 3, 0, 2, 3, 0, 5, 2]  # one sample of class 5, none of 1 and 4
    latents = noise("contrastive", len(of), 6).double().requires_grad_()
    forms = itertools.product((0.1, 0.5), (False, True), ("batch", "class"), ("present", "all"))
    for form in forms:
        loss = label_contrastive(latents, of, 6, *form)
        name = "/".join(str(part).lower() for part in form)
        yield f"losses/contrastive/{name}/value", loss.reshape(1)
        yield f"losses/contrastive/{name}/gradient", torch.autograd.grad(loss, latents)[0]


def steps():
    """Two steps of a client: the change of each weight, and the final running statistics."""
    for rule in ("plain", "nesterov"):
        net = Network(BODIES["small"])
        net(noise("warm-up", 1, 3, 16, 16))  # creates all entries
        net.training = True
        start = {name: value.detach().clone() for name, value in net.weights.items()}
        nesterov = rule == "nesterov"
        optimiser = torch.optim.SGD(
            net.weights.values(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=nesterov
        )
        for step in range(2):
            fix, mix = labels(f"fix of step {step}", 4), labels(f"mix of step {step}", 4)
            lam = ((noise(f"lambda of step {step}", 4) + 1) / 2).double()
            fix_logits = net(noise(f"fix view of step {step}", 4, 3, 16, 16))["logits"]
            mix_logits = net(noise(f"mix view of step {step}", 4, 3, 16, 16))["logits"]
            loss = cross_entropy(fix_logits, fix) + 0.5 * mix_loss(mix_logits, fix, mix, lam)
            optimiser.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(net.weights.values(), 1.0)
            assert norm > 1.0, "the step must be clipped to test clipping"
            optimiser.step()
            yield f"steps/{rule}/loss/{step}", loss.reshape(1)
        for name, value in net.weights.items():
            change = (value.detach() - start[name]).flatten()
            places = hashed(f"places/{name}", 256) % len(change)
            yield f"steps/{rule}/change/{name}", change[places] if len(change) > 256 else change
            yield f"steps/{rule}/length/{name}", change.norm().reshape(1)
        for name, value in net.statistics.items():
            yield f"steps/{rule}/statistic/{name}", value


def save(path, tensors, metadata):
    """Write the safetensors format: the length of the header, the header, the numbers."""
    header, data = {"__metadata__": metadata}, bytearray()
    for name, tensor in tensors.items():
        begin = len(data)
        data += struct.pack(f"<{tensor.numel()}f", *tensor.flatten().tolist())
        header[name] = {
            "dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, len(data)]
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    tensors = {}
    for part in (networks, losses, steps):
        for name, value in part():
            assert name not in tensors and torch.isfinite(value).all(), name
            tensors[name] = value.detach().clone()
    save(FIXTURE, tensors, {"torch": torch.__version__.split("+")[0]})
    print(f"{len(tensors)} tensors, {FIXTURE.stat().st_size:,} bytes in {FIXTURE}")


if __name__ == "__main__":
    main()
