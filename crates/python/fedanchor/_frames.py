"""Rows as a data frame of the library that is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]


def flat(record: Mapping[str, Any], prefix: str = "") -> Row:
    """A record without nesting: `{"losses": {"fix": 1}}` becomes `{"losses.fix": 1}`."""
    row: Row = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            row.update(flat(value, f"{prefix}{key}."))
        else:
            row[f"{prefix}{key}"] = value
    return row


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A data frame of pandas or polars, whichever is installed; a list of dictionaries without either."""
    flattened = [flat(row) for row in rows]
    if importlib.util.find_spec("pandas"):
        return importlib.import_module("pandas").DataFrame(flattened)
    if importlib.util.find_spec("polars"):
        return importlib.import_module("polars").DataFrame(flattened, infer_schema_length=None)
    return flattened


def array(values: bytes, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Numbers in single precision as an array."""
    return np.frombuffer(values, dtype="<f4").reshape(shape).copy()
