"""Measure the client's training step in PyTorch: WRN-28-2, the fix and the mix view of 32 images each,
backward, clipping and SGD, as in crates/core/benches/step.rs. Each line on standard input runs one step
and prints its seconds.

    python3 benches/step_torch.py contiguous_format|channels_last
"""
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 32


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        same = before == after and stride == 1
        self.shortcut = None if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        active = F.relu(self.bn1(x), inplace=True)
        branch = self.conv2(F.relu(self.bn2(self.conv1(active)), inplace=True))
        return branch.add_(x if self.shortcut is None else self.shortcut(active))


class Wrn28x2(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        widths = [16] + [32] * 4 + [64] * 4 + [128] * 4
        strides = [1] * 4 + [2, 1, 1, 1] * 2
        self.blocks = nn.Sequential(*(Block(a, b, s) for a, b, s in zip(widths, widths[1:], strides)))
        self.bn, self.classifier = nn.BatchNorm2d(128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.bn(self.blocks(self.stem(x))), inplace=True)
        return self.classifier(x.mean((2, 3)))


def main():
    layout = getattr(torch, sys.argv[1])
    model = Wrn28x2().to(memory_format=layout).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
    fix, mix = (torch.randn(BATCH, 3, 32, 32).to(memory_format=layout) for _ in range(2))
    fix_labels, mix_labels = (torch.randint(10, (BATCH,)) for _ in range(2))
    mixing = torch.rand(BATCH)
    for _ in sys.stdin:
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(fix), fix_labels)
        logits = model(mix)
        to_fix = F.cross_entropy(logits, fix_labels, reduction="none")
        to_mix = F.cross_entropy(logits, mix_labels, reduction="none")
        (loss + (mixing * to_fix + (1 - mixing) * to_mix).mean()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
