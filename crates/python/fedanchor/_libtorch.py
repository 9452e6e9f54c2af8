"""Finds libtorch: in the package `torch`, of the one version that this build was compiled for.

Only its libraries are loaded, which takes a fraction of the time of `import torch`. What needs a GPU is among them if the
package has it. A build in a checkout knows the place of libtorch by itself.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
from pathlib import Path

#: The version of libtorch that the extension module was compiled for.
TORCH = "2.11.0"

#: Libraries in the order in which they need each other; those of a GPU are in some packages only.
LIBRARIES = ("c10", "torch_cpu", "torch", "c10_cuda", "torch_cuda")


def load() -> None:
    """Loads libtorch's libraries, or says how to install them."""
    # Threads that wait for one another would keep the cores busy.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        _check()
        return
    if version.split("+")[0] != TORCH:
        raise ImportError(
            f"fedanchor was built for torch {TORCH}, but torch {version} is installed: pip install torch=={TORCH}"
        )
    package = importlib.util.find_spec("torch")
    if package is not None and package.origin is not None:
        folder = Path(package.origin).parent / "lib"
        for name in LIBRARIES:
            library = folder / f"lib{name}.so"
            if library.exists():
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    _check()


def _check() -> None:
    try:
        from fedanchor import _native

        kernels = Path(__file__).parent / "libfedanchor_cuda.so"
        if kernels.exists():
            _native.set_kernels(str(kernels))
    except ImportError as error:
        if "libtorch" in str(error) or "libc10" in str(error):
            raise ImportError(f"fedanchor needs torch {TORCH}: pip install torch=={TORCH}") from error
        raise
