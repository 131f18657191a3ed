"""Files of states: a zip archive (numpy's npz) of the bytes of each tensor, with their types and shapes as JSON."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InputError, short_repr
from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy

FORMAT = "weft state 1"


def write_state_file(
    path: str | PathLike[str], arrays: Mapping[str, Array], about: Mapping[str, Any], file: str
) -> None:
    """Write arrays by name; the file is complete or not there."""
    target = _as_path(path, file)
    entries = [
        {"name": name, "dtype": str(from_numpy(array.dtype)), "shape": array.shape} for name, array in arrays.items()
    ]
    text = json.dumps({"format": FORMAT, "tensors": entries, **about})
    raw = {
        f"t{number}": np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for number, array in enumerate(arrays.values())
    }
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as stream:
            np.savez(stream, **{"about": np.frombuffer(text.encode(), np.uint8), **raw})  # type: ignore[arg-type]
        unfinished.replace(target)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise InputError(f"the state cannot be saved to {target}: {error.strerror or error}", file=file) from error


def read_state_file(path: str | PathLike[str], file: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read what `write_state_file` wrote; InputError for any other file."""
    source = _as_path(path, file)
    try:
        with np.load(source, allow_pickle=False) as content:
            about = json.loads(content["about"].tobytes())
            if about.get("format") != FORMAT:
                raise ValueError(f"its format is {short_repr(about.get('format'))}")
            arrays = {
                entry["name"]: content[f"t{number}"].view(DType(entry["dtype"]).numpy).reshape(entry["shape"])
                for number, entry in enumerate(about["tensors"])
            }
            return arrays, about
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}", file=file) from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        hint = "load a file that state.save wrote"
        raise InputError(f"{source} is not a file of a state: {error}", file=file, hint=hint) from error


def _as_path(path: str | PathLike[str], file: str) -> Path:
    try:
        return Path(path)
    except TypeError as error:
        raise InputError(f"path must be a path, not a {type(path).__name__}", file=file) from error
