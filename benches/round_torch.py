#!/usr/bin/env python3
"""Measure the clients' part of a round in plain PyTorch, one client after the other: the same networks, the same step
(fix and mix view in separate batch norm passes, L_fix + L_mix, clipping, SGD) and the same number of image passes as
`crates/core/benches/round.rs`. Inputs are on the device before the measurement, so preparing them takes no time.

    python3 benches/round_torch.py MODEL DEVICE CLIENTS IMAGES EPOCHS BATCH [eager|graph|floor]

Prints one line of JSON.
"""
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Post(nn.Module):
    """A residual block with norms after the convolutions (ResNet-18)."""

    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.down = nn.Sequential()
        if stride != 1 or a != b:
            self.down = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.down(x), inplace=True)


class Pre(nn.Module):
    """A residual block with norms before the convolutions (WRN-28-2 and `small`)."""

    def __init__(self, a, b, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(a), nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(b), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.down = nn.Conv2d(a, b, 1, stride, bias=False) if stride != 1 or a != b else None

    def forward(self, x):
        active = F.relu(self.bn1(x), inplace=True)
        y = self.conv2(F.relu(self.bn2(self.conv1(active)), inplace=True))
        return y + (self.down(active) if self.down else x)


class Net(nn.Module):
    def __init__(self, name, channels=3):
        super().__init__()
        if name == "resnet18":
            block, stem, stride, widths, blocks = Post, 64, 1, [64, 128, 256, 512], 2
        elif name == "wrn28x2":
            block, stem, stride, widths, blocks = Pre, 16, 1, [32, 64, 128], 4
        else:
            block, stem, stride, widths, blocks = Pre, 16, 2, [16, 32, 64], 1
        self.conv1 = nn.Conv2d(channels, stem, 3, stride, 1, bias=False)
        self.stem = nn.Sequential(nn.BatchNorm2d(stem), nn.ReLU(inplace=True)) if block is Post else nn.Sequential()
        layers, a = [], stem
        for stage, b in enumerate(widths):
            for index in range(blocks):
                layers.append(block(a, b, 2 if stage > 0 and index == 0 else 1))
                a = b
        self.layers = nn.Sequential(*layers)
        self.end = nn.Sequential(nn.BatchNorm2d(a), nn.ReLU(inplace=True)) if block is Pre else nn.Sequential()
        self.head = nn.Linear(a, 10)

    def forward(self, x):
        return self.head(self.end(self.layers(self.stem(self.conv1(x)))).mean((2, 3)))


def operations(net, device):
    """Multiplications in the convolutions per image and forward pass."""
    total = 0

    def count(module, inputs, output):
        nonlocal total
        total += output[0].numel() * module.weight[0].numel()

    hooks = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        net.eval()(torch.zeros(1, 3, 32, 32, device=device))
    net.train()
    for hook in hooks:
        hook.remove()
    return total


def floor(device):
    """Operations per second of a large matrix product in bfloat16 on random numbers."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        wait(device)
        start = time.perf_counter()
        for _ in range(5):
            a @ b
        wait(device)
        best = min(best, (time.perf_counter() - start) / 5)
    return 2 * size**3 / best


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def main():
    model, device, clients, images, epochs, batch, way = (sys.argv[1:] + ["eager"])[:7]
    device = torch.device(device)
    clients, images, epochs, batch = map(int, (clients, images, epochs, batch))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    net = Net(model).to(device).to(memory_format=torch.channels_last)
    if way == "floor":
        print(json.dumps({"way": way, "rate": floor(device), "operations": operations(net, device)}))
        return
    start_state = {name: value.clone() for name, value in net.state_dict().items()}
    count = images // batch
    shape = (count, batch, 3, 32, 32)
    pool = lambda: [x.contiguous(memory_format=torch.channels_last) for x in torch.randn(shape, device=device)]
    fix, mixed = pool(), pool()
    labels, others = (torch.randint(10, (count, batch), device=device) for _ in range(2))
    half = device.type == "cuda"

    def step(optimiser, x, z, y, y2, share):
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            a, b = net(x), net(z)
        a, b = a.float(), b.float()
        loss = F.cross_entropy(a, y) + share * F.cross_entropy(b, y) + (1 - share) * F.cross_entropy(b, y2)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()

    make = lambda: torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
    share = torch.tensor(0.6, device=device)
    for index in range(5):  # warm-up: libraries choose their algorithms
        step(make(), fix[index % count], mixed[index % count], labels[0], others[0], share)
    wait(device)
    graph = None
    if way == "graph":
        optimiser = make()
        for parameter in net.parameters():
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        still = [fix[0].clone(), mixed[0].clone(), labels[0].clone(), others[0].clone()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(optimiser, *still, share)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(optimiser, *still, share)
        wait(device)
    start = time.perf_counter()
    for _ in range(clients):
        with torch.no_grad():
            net.load_state_dict(start_state)
        if graph is None:
            optimiser = make()
        else:
            for parameter in net.parameters():
                optimiser.state[parameter]["momentum_buffer"].zero_()
        for _ in range(epochs):
            for index in range(count):
                inputs = (fix[index], mixed[index], labels[index], others[index])
                if graph is None:
                    step(optimiser, *inputs, share)
                else:
                    for to, value in zip(still, inputs):
                        to.copy_(value)
                    graph.replay()
    wait(device)
    seconds = time.perf_counter() - start
    print(json.dumps({"way": way, "seconds": seconds, "passes": 2 * clients * epochs * count * batch, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
