"""What FedAnchor's clients minimise (Qiu et al., 2024, eq. 6 to 10), written in PyTorch:

    python examples/python/fix_mix.py

L_fix is cross entropy on strongly augmented images, L_mix that of mixtures with the labels of both images. The method
itself stays as it is: labels by the anchors, thresholds, prior and adjusted logits are done before the loss reads anything.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import fedanchor


def fix_mix(
    logits: Tensor,
    labels: Tensor,
    sample_weights: Tensor,
    mix_logits: Tensor,
    mix_labels: Tensor,
    mix_sample_weights: Tensor,
    mix_lambda: Tensor,
    b: Tensor,
) -> dict[str, Tensor]:
    fix = (sample_weights * F.cross_entropy(logits, labels, reduction="none")).mean()
    to_fix = sample_weights * F.cross_entropy(mix_logits, labels, reduction="none")
    to_mix = mix_sample_weights * F.cross_entropy(mix_logits, mix_labels, reduction="none")
    return {"fix": fix, "mix": b * (mix_lambda * to_fix + (1 - mix_lambda) * to_mix).mean()}


def main() -> None:
    loss = fedanchor.save_loss(fix_mix, Path(__file__).with_suffix(".loss"))
    experiment = {"client": {"loss": {"file": str(loss), "arguments": {"b": 1.0}}}}
    run = fedanchor.run(experiment, progress=True)
    print(f"{run.path}: {run.summary['final_accuracy']} %")


if __name__ == "__main__":
    main()
