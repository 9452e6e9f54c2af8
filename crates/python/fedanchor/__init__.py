"""Federated semi-supervised learning with labelled anchors on the server: FedAnchor and the methods it is compared with.

>>> import fedanchor
>>> run = fedanchor.run("experiment.toml")  # doctest: +SKIP
>>> run.summary["final_accuracy"]  # doctest: +SKIP
93.2

Runs are folders that the program `fedanchor` reads as well; `fedanchor.Run` reads those that the program wrote.
"""

import atexit
import os

from fedanchor import _libtorch

_libtorch.load()

from fedanchor._data import Clients, Data
from fedanchor._losses import save_loss
from fedanchor._model import Model, Prediction
from fedanchor._native import Error, finish as _finish, version as __version__
from fedanchor._results import Figure, Run, compare, report, runs, table
from fedanchor._running import Progress, resolve, run, sweep

__all__ = [
    "Clients",
    "Data",
    "Error",
    "Figure",
    "Model",
    "Prediction",
    "Progress",
    "Run",
    "__version__",
    "compare",
    "report",
    "resolve",
    "run",
    "runs",
    "save_loss",
    "sweep",
    "table",
]


def _end() -> None:
    """Threads that compute would use libtorch while it is unloaded. Whoever does not want to wait presses Ctrl-C."""
    try:
        _finish()
    except KeyboardInterrupt:
        os._exit(130)


atexit.register(_end)
