"""Replace onnxruntime with weft: a finder at the head of `sys.meta_path`, and package metadata for onnxruntime.

The replaced modules have the content of `weft.compat.onnxruntime` under onnxruntime's module names. All others
(quantization, transformers, tools) come from the real onnxruntime, if it is installed.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

ONNXRUNTIME = "onnxruntime"
VARIABLE = "WEFT_COMPAT"
API_LEVEL = "1.31.1"
"""The version of onnxruntime whose Python interface weft provides and is tested against."""
_SOURCE = "weft.compat"
_PACKAGES = (ONNXRUNTIME, f"{ONNXRUNTIME}.backend", f"{ONNXRUNTIME}.capi")
_MODULES = (
    *_PACKAGES,
    f"{ONNXRUNTIME}.backend.backend",
    f"{ONNXRUNTIME}.backend.backend_rep",
    f"{ONNXRUNTIME}.capi._pybind_state",
    f"{ONNXRUNTIME}.capi.build_and_package_info",
    f"{ONNXRUNTIME}.capi.onnxruntime_inference_collection",
    f"{ONNXRUNTIME}.capi.onnxruntime_pybind11_state",
    f"{ONNXRUNTIME}.capi.onnxruntime_validation",
)
_NOT_COPIED = ("__name__", "__spec__", "__loader__", "__package__", "__path__", "__cached__", "__builtins__")


class OnnxruntimeFinder:
    """Find weft's modules for onnxruntime's names. `real_modules` were loaded before the finder was installed."""

    def __init__(self, real_modules: dict[str, ModuleType]) -> None:
        self.real_modules = real_modules

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name not in _MODULES:
            return None
        loader: Any = _WeftLoader(f"{_SOURCE}.{name}")
        spec = ModuleSpec(name, loader, origin=_source_file(name), is_package=name in _PACKAGES)
        spec.has_location = True
        if name in _PACKAGES:
            spec.submodule_search_locations = real_locations(name)
        return spec

    def find_distributions(self, context: Any = None) -> Iterator[Any]:
        """Yield metadata for onnxruntime where it is not installed; `importlib.metadata` calls this."""
        query = {} if context is None else vars(context)
        name = query.get("name") or ONNXRUNTIME
        if name.replace("_", "-").lower() != ONNXRUNTIME or "path" in query:  # queries of a folder list its files
            return
        from importlib.metadata import DistributionFinder, MetadataPathFinder

        from weft.compat.virtual_distribution import VirtualDistribution

        real = MetadataPathFinder.find_distributions(DistributionFinder.Context(name=ONNXRUNTIME))
        if not any(True for _ in real):
            yield VirtualDistribution()


class _WeftLoader:
    """Fill a module with the content of one of weft's."""

    def __init__(self, source: str) -> None:
        self._source = source

    def create_module(self, _: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        source = import_module(self._source)
        for name, content in vars(source).items():
            if name not in _NOT_COPIED and not _is_internal_module(content):
                setattr(module, name, content)


def _is_internal_module(content: Any) -> bool:
    """Whether it is a module that onnxruntime does not have."""
    return isinstance(content, ModuleType) and content.__name__.removeprefix(f"{_SOURCE}.") not in _MODULES


def _source_file(name: str) -> str:
    """Return the file of weft whose content a module of onnxruntime has."""
    base = os.path.join(os.path.dirname(__file__), *name.split("."))  # noqa: PTH118, PTH120 - as below
    return os.path.join(base, "__init__.py") if name in _PACKAGES else f"{base}.py"  # noqa: PTH118


def real_locations(name: str) -> list[str]:
    """Return the folders of a package of the real onnxruntime; none if it is not installed."""
    spec = PathFinder.find_spec(ONNXRUNTIME)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    subfolders = name.split(".")[1:]
    return [os.path.join(folder, *subfolders) for folder in folders]  # noqa: PTH118 - at the start of every process


def install() -> None:
    """Make `import onnxruntime` return weft in this process. Modules that have imported it already keep theirs."""
    if not is_installed():
        sys.meta_path.insert(0, OnnxruntimeFinder(_remove_modules()))


def uninstall() -> None:
    """Undo `install`: `import onnxruntime` returns the real one again, if it is installed."""
    for finder in [finder for finder in sys.meta_path if isinstance(finder, OnnxruntimeFinder)]:
        sys.meta_path.remove(finder)
        _remove_modules()
        sys.modules.update(finder.real_modules)


def is_installed() -> bool:
    """Whether `import onnxruntime` returns weft in this process."""
    return any(isinstance(finder, OnnxruntimeFinder) for finder in sys.meta_path)


def install_from_environment() -> None:
    """Install what WEFT_COMPAT names. weft_compat.pth calls this at the start of processes that have the variable."""
    for name in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        if name == ONNXRUNTIME:
            install()
        else:
            warnings.warn(f"{VARIABLE}: weft replaces only {ONNXRUNTIME}, not {name!r}", stacklevel=2)


install_as_told = install_from_environment  # the name in .pth files of environments that version 0.1 was installed in


def _remove_modules() -> dict[str, ModuleType]:
    """Remove onnxruntime's modules from `sys.modules`, and return them."""
    names = [name for name in sys.modules if name == ONNXRUNTIME or name.startswith(f"{ONNXRUNTIME}.")]
    return {name: sys.modules.pop(name) for name in names}
