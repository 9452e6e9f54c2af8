"""What clients minimise, written in PyTorch."""

from __future__ import annotations

import inspect
import io
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: What a loss may read by the name of its argument, with the shape for one client: B samples per batch, C classes, F pooled
#: features, D latent numbers, P trained weights.
INPUTS = {
    "logits": "BC",
    "features": "BF",
    "latents": "BD",
    "labels": "B",
    "sample_weights": "B",
    "mix_logits": "BC",
    "mix_labels": "B",
    "mix_sample_weights": "B",
    "mix_lambda": "B",
    "weights": "P",
    "sent_weights": "P",
    "sent_logits": "BC",
    "sent_features": "BF",
    "round": "",
}


def save_loss(function: Callable[..., dict[str, torch.Tensor]], path: str | os.PathLike[str]) -> Path:
    """Saves what clients minimise, for `client.loss` of an experiment; returns the path.

    The function is written for one client. Its arguments are tensors with the names of what it reads, `logits` and `labels`
    for example (docs/python.md lists them); any other name is a number that the experiment gives with
    `client.loss.arguments`. It returns its terms by name, each one number; clients minimise their sum.

    It is compiled by TorchScript, so that a run needs no Python, and it trains all clients of a round at once. What it
    cannot do, such as reading a value with `.item()`, is refused here with the reason.
    """
    import torch

    arguments = list(inspect.signature(function).parameters)
    terms = _terms(function, arguments)
    with warnings.catch_warnings():
        # Of what is to come after TorchScript, nothing runs without Python.
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled = _compiled(function, arguments, terms)
    path = Path(path)
    with zipfile.ZipFile(io.BytesIO(compiled)) as archive, zipfile.ZipFile(path, "w") as kept:
        for entry in archive.infolist():
            # Where the source was on this machine: the same function has the same bytes, and hash, on every one.
            if not entry.filename.endswith(".debug_pkl"):
                kept.writestr(zipfile.ZipInfo(entry.filename), archive.read(entry))
    return path


def _compiled(function: Callable[..., dict[str, torch.Tensor]], arguments: list[str], terms: list[str]) -> bytes:
    """The function as a module of TorchScript, which also knows its names."""
    import torch

    # The name of its module would be part of the file, and so of the loss's identity.
    own, function.__module__ = function.__module__, "__main__"
    try:
        scripted = torch.jit.script(function)
    finally:
        function.__module__ = own
    listed = ", ".join(arguments)
    chosen = ", ".join(f"terms[{name!r}]" for name in terms)
    # A class of its own, since methods are added to the class.
    module = torch.jit.script(type("Loss", (torch.nn.Module,), {})())
    # Names in the code are those of this frame: `scripted` is the function.
    module.define(
        f"def forward(self, {listed}):\n    terms = scripted({listed})\n    return [{chosen}]\n"
        f"def arguments(self) -> List[str]:\n    return {arguments!r}\n"
        f"def terms(self) -> List[str]:\n    return {terms!r}\n"
    )
    content: bytes = module.save_to_buffer()
    return content


def _terms(function: Callable[..., dict[str, torch.Tensor]], arguments: list[str]) -> list[str]:
    """The names of the terms, from a call for two clients at once."""
    import torch

    sizes = {"B": 3, "C": 4, "F": 5, "D": 6, "P": 7}

    def example(name: str) -> torch.Tensor:
        shape = [2, *(sizes[letter] for letter in INPUTS.get(name, ""))]
        return torch.randint(4, shape) if name.endswith("labels") else torch.rand(shape)

    terms = torch.vmap(function)(*map(example, arguments))
    if not isinstance(terms, dict) or not terms:
        raise TypeError(f"{function.__name__}: expected terms by name, such as {{'fix': loss}}, got {terms!r}")
    for name, term in terms.items():
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(f"{function.__name__}: expected a name such as 'fix' for a term, got {name!r}")
        if term.shape != (2,):
            shape = tuple(term.shape[1:])
            raise ValueError(
                f"{function.__name__}: the term {name!r} has the shape {shape}: expected one number, such as the mean over the batch"
            )
    return list(terms)
