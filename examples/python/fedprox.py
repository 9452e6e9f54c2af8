"""FedProx (Li et al., "Federated Optimization in Heterogeneous Networks", 2020), its loss written in PyTorch:

    python examples/python/fedprox.py

Clients know their labels here; the term mu/2 |w - w_sent|^2 holds each of them near the model that it was sent.
`examples/fedprox` is the same in Rust.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import fedanchor


def fedprox(logits: Tensor, labels: Tensor, weights: Tensor, sent_weights: Tensor, mu: Tensor) -> dict[str, Tensor]:
    distance = (weights - sent_weights).square().sum()
    return {"fix": F.cross_entropy(logits, labels), "proximal": mu / 2 * distance}


def main() -> None:
    loss = fedanchor.save_loss(fedprox, Path(__file__).with_suffix(".loss"))
    experiment = {
        "rounds": 20,
        "data": {"name": "sample", "anchors": 60, "clients": 20},
        "partition": {"alpha": 0.1},
        "model": {"name": "small"},
        "client": {"per_round": 5, "epochs": 2, "batch": 32, "loss": {"file": str(loss), "arguments": {"mu": 0.1}}},
        "method": {"name": "supervised"},
    }
    run = fedanchor.run(experiment, progress=True)
    print(f"{run.path}: {run.summary['final_accuracy']} %")


if __name__ == "__main__":
    main()
