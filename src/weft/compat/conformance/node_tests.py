"""The node tests of onnx's suite, cached on disk: importing them computes their expected outputs, which takes seconds.

The name of the cache entry covers the versions of the packages that compute them. The entry is a pickle, which is
read as data: only protobufs and arrays are accepted.
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
_NUMPY_NAMES = {"ndarray", "dtype", "_frombuffer", "_reconstruct", "scalar"}


def load_node_tests() -> list[TestCase]:
    """Return the node tests in the suite's order. Each call returns new objects, which the caller may modify."""
    path = _cache_path()
    if path is not None:
        with suppress(Exception):  # a damaged entry is replaced
            return list(_DataUnpickler(BytesIO(read_file(path))).load())
    with _without_warnings(), _fixed_seed():
        tests = load_model_tests(kind="node")
    if path is not None:
        with suppress(OSError, pickle.PicklingError, TypeError):
            write_file(path, pickle.dumps(tests, 5))
    return list(tests)


def _cache_path() -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    versions = (onnx.__version__, np.__version__, ml_dtypes.__version__, platform.python_version(), platform.machine())
    return folder / FOLDER / sha256("\n".join(versions).encode()).hexdigest()


class _DataUnpickler(pickle.Unpickler):
    """Unpickle arrays and protobufs only."""

    def find_class(self, module: str, name: str) -> Any:
        package = module.partition(".")[0]
        is_data = {
            "numpy": name in _NUMPY_NAMES,
            "ml_dtypes": module == package,
            "onnx": name.endswith("Proto") or name == TestCase.__name__,
        }
        if not is_data.get(package, False):
            raise pickle.UnpicklingError(f"{module}.{name} is not data")
        return super().find_class(module, name)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore warnings: the suite overflows and divides by zero on purpose while it computes its data."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _fixed_seed() -> Iterator[None]:
    """Seed numpy's global generator, which the suite draws its data from, so that all runs test the same data."""
    state = np.random.get_state()
    np.random.seed(0)
    yield
    np.random.set_state(state)
