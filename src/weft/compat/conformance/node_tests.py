"""The node tests of onnx's suite, kept on disk: importing them computes what they expect, which takes seconds.

Whoever wants them (every worker of a run) gets them from weft's own folder, in milliseconds, as the same versions of
packages made them before. What is read there is data: protobufs and arrays.
"""

from __future__ import annotations

import pickle
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from weft.cache.files import cache_folder, read_file, write_file

FOLDER = "suite"
_ARRAYS = {"ndarray", "dtype", "_frombuffer", "_reconstruct", "scalar"}  # of numpy


def node_tests() -> list[TestCase]:
    """All of them, in the suite's order; nobody else has them, so they may be changed."""
    place = _place()
    if place is not None:
        with suppress(Exception):  # whatever is wrong with it: they are made again
            return list(_Reader(BytesIO(read_file(place))).load())
    with _quiet(), _same_random_numbers():
        tests = load_model_tests(kind="node")
    if place is not None:
        with suppress(OSError, pickle.PicklingError, TypeError):
            write_file(place, pickle.dumps(tests, 5))
    return list(tests)


def _place() -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    versions = (onnx.__version__, np.__version__, ml_dtypes.__version__, platform.python_version(), platform.machine())
    return folder / FOLDER / sha256("\n".join(versions).encode()).hexdigest()


class _Reader(pickle.Unpickler):
    """Takes nothing but data."""

    def find_class(self, module: str, name: str) -> Any:
        package = module.partition(".")[0]
        is_data = {
            "numpy": name in _ARRAYS,
            "ml_dtypes": module == package,
            "onnx": name.endswith("Proto") or name == TestCase.__name__,
        }
        if not is_data.get(package, False):
            raise pickle.UnpicklingError(f"{module}.{name} is no data")
        return super().find_class(module, name)


@contextmanager
def _quiet() -> Iterator[None]:
    """The suite overflows and divides by zero on purpose while it computes its data."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """The suite draws its data from numpy's global generator: every run shall test the same."""
    state = np.random.get_state()
    np.random.seed(0)
    yield
    np.random.set_state(state)
