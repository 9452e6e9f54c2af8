"""What clients minimise, written in PyTorch."""

from __future__ import annotations

import inspect
import io
import os
import re
import threading
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


#: Names as the program takes them.
NAME = re.compile("[A-Za-z][A-Za-z0-9_]*")

#: TorchScript's state, which a call changes, is that of the process.
_LOCK = threading.Lock()


def save_loss(
    function: Callable[..., dict[str, torch.Tensor]],
    path: str | os.PathLike[str],
    *,
    classes: int = 10,
    features: int = 5,
    latents: int = 6,
) -> Path:
    """Saves what clients minimise, for `client.loss` of an experiment; returns the path.

    The function is written for one client. Its arguments are tensors with the names of what it reads, `logits` and `labels`
    for example (docs/python.md lists them); any other name is a number that the experiment gives with
    `client.loss.arguments`. It returns its terms by name, each one number; clients minimise their sum.

    It is compiled by TorchScript, so that a run needs no Python, and it trains all clients of a round at once. It is tried
    here with so many classes, features and latents: what it cannot do, such as reading a value with `.item()`, is refused
    with the reason.
    """
    import torch

    arguments = _arguments(function)
    for name, size in (("classes", classes), ("features", features), ("latents", latents)):
        if size < 1:
            raise ValueError(f"{name}: expected at least 1, got {size}")
    sizes = {"C": classes, "F": features, "D": latents, "P": 7}
    with torch.random.fork_rng(devices=[]):
        terms = _terms(function, arguments, {**sizes, "B": 3})
        if _terms(function, arguments, {**sizes, "B": 4}) != terms:
            raise ValueError(f"{function.__name__}: its terms depend on the number of samples")
    with _LOCK, warnings.catch_warnings():
        # Of what is to come after TorchScript, nothing runs without Python.
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled = _without_places(_compiled(function, arguments, terms))
        try:
            torch.jit.load(io.BytesIO(compiled))
        except RuntimeError as error:
            raise ValueError(f"{function.__name__}: TorchScript cannot read what it wrote: {error}") from None
    path = Path(path)
    path.write_bytes(compiled)
    return path


def _arguments(function: Callable[..., object]) -> list[str]:
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise TypeError(f"expected a function that is written with `def`, got {function!r}")
    if not function.__name__.isascii():
        raise TypeError(f"{function.__name__}: expected a name of letters from a to z, digits and _")
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        name = parameter.name
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise TypeError(f"{function.__name__}: expected plain arguments, got {parameter}")
        if parameter.default is not parameter.empty:
            raise TypeError(f"{function.__name__}: {name} has a default, which belongs to the experiment: client.loss.arguments")
        if not NAME.fullmatch(name) or name in ("self", "scripted", "terms"):
            raise TypeError(f"{function.__name__}: {name} cannot be the name of an argument")
        if parameter.annotation in (int, float, bool, "int", "float", "bool"):
            raise TypeError(f"{function.__name__}: {name} is a tensor, also where it is one number")
    names = [parameter.name for parameter in parameters]
    if not set(names) & set(INPUTS):
        raise TypeError(f"{function.__name__}: expected arguments such as `logits` and `labels`: it reads nothing of a batch")
    return names


def _without_places(archive: bytes) -> bytes:
    """Without where the source was on this machine: the same function has the same bytes, and hash, on every one."""
    kept = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as compiled, zipfile.ZipFile(kept, "w") as written:
        for entry in compiled.infolist():
            if not entry.filename.endswith((".debug_pkl", "serialization_id")):
                written.writestr(zipfile.ZipInfo(entry.filename), compiled.read(entry))
    return kept.getvalue()


def _compiled(function: Callable[..., dict[str, torch.Tensor]], arguments: list[str], terms: list[str]) -> bytes:
    """The function as a module of TorchScript, which also knows its names."""
    import torch

    state = torch.jit._state
    # Names are part of the file: without those of an earlier call, and of the function's module.
    own, before = function.__module__, state._python_cu
    function.__module__, state._python_cu = "__main__", torch._C.CompilationUnit()
    try:
        scripted = torch.jit.script(function)
        _refuse_remainders(function.__name__, scripted.inlined_graph)
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
    finally:
        function.__module__, state._python_cu = own, before
    return content


def _refuse_remainders(name: str, block: Any) -> None:
    """libtorch ends the process where it takes the remainder of a whole number by 0."""
    for node in block.nodes():
        whole = [str(one.type()) == "int" for one in node.inputs()]
        if node.kind() in ("aten::remainder", "aten::fmod") and whole and all(whole):
            raise ValueError(f"{name}: the remainder of a whole number: compute it with tensors")
        for inner in node.blocks():
            _refuse_remainders(name, inner)


def _terms(function: Callable[..., dict[str, torch.Tensor]], arguments: list[str], sizes: dict[str, int]) -> list[str]:
    """The names of the terms, from a call for two clients at once."""
    import torch

    def example(name: str) -> torch.Tensor:
        shape = [2, *(sizes[letter] for letter in INPUTS.get(name, ""))]
        return torch.randint(sizes["C"], shape) if name.endswith("labels") else torch.rand(shape)

    terms = torch.vmap(function)(*map(example, arguments))
    if not isinstance(terms, dict) or not terms:
        raise TypeError(f"{function.__name__}: expected terms by name, such as {{'fix': loss}}, got {terms!r}")
    for name, term in terms.items():
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise ValueError(f"{function.__name__}: expected a name such as 'fix' for a term, got {name!r}")
        if term.shape != (2,) or term.is_complex():
            found = "is complex" if term.is_complex() else f"has the shape {tuple(term.shape[1:])}"
            raise ValueError(
                f"{function.__name__}: the term {name!r} {found}: expected one number, such as the mean over the batch"
            )
    return list(terms)
