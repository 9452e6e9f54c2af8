"""Measure the client's training step in PyTorch: the fix and the mix view of 32 images each, backward, clipping and SGD,
as in crates/core/benches/step.rs. Each line on standard input runs one step and prints its seconds.

    python3 benches/step_torch.py MODEL THREADS SIDE CHANNELS contiguous|channels-last|compiled

`compiled` is torch.compile of the network in the layout that is faster without it, channels last.
"""
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

from round_torch import Net

BATCH = 32


def main():
    name, (threads, side, channels), way = sys.argv[1], map(int, sys.argv[2:5]), sys.argv[5]
    torch.set_num_threads(threads)
    layout = torch.contiguous_format if way == "contiguous" else torch.channels_last
    net = Net(name, channels).to(memory_format=layout).train()
    forward = torch.compile(net) if way == "compiled" else net
    optimiser = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
    fix, mix = (torch.randn(BATCH, channels, side, side).to(memory_format=layout) for _ in range(2))
    fix_labels, mix_labels = (torch.randint(10, (BATCH,)) for _ in range(2))
    mixing = torch.rand(BATCH)
    for _ in sys.stdin:
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(forward(fix), fix_labels)
        logits = forward(mix)
        to_fix = F.cross_entropy(logits, fix_labels, reduction="none")
        to_mix = F.cross_entropy(logits, mix_labels, reduction="none")
        (loss + (mixing * to_fix + (1 - mixing) * to_mix).mean()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
