"""Replace onnxruntime and onnxruntime_genai with weft: finders at the head of `sys.meta_path`, and metadata.

The replaced modules have the content of `weft.compat.onnxruntime` under onnxruntime's module names. All others
(quantization, transformers, tools) come from the real onnxruntime, if it is installed. The same holds for
onnxruntime_genai, whose `models` builds folders.
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
GENAI = "onnxruntime_genai"
PACKAGES = (ONNXRUNTIME, GENAI)
"""What weft can replace."""
VARIABLE = "WEFT_COMPAT"
API_LEVEL = "1.31.1"
"""The version of onnxruntime whose Python interface weft provides and is tested against."""
GENAI_API_LEVEL = "0.18.0"
"""The version of onnxruntime-genai whose Python interface weft provides and is tested against."""
_SOURCE = "weft.compat"
_PACKAGES = (ONNXRUNTIME, GENAI, f"{ONNXRUNTIME}.backend", f"{ONNXRUNTIME}.capi")
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
    """Find weft's modules for the names of a package. `real_modules` were loaded before the finder was installed."""

    def __init__(self, package: str, real_modules: dict[str, ModuleType]) -> None:
        self.package = package
        self.real_modules = real_modules

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name not in _MODULES or not _belongs_to(self.package, name):
            return None
        loader: Any = _WeftLoader(f"{_SOURCE}.{name}")
        spec = ModuleSpec(name, loader, origin=_source_file(name), is_package=name in _PACKAGES)
        spec.has_location = True
        if name in _PACKAGES:
            spec.submodule_search_locations = real_locations(name)
        return spec

    def find_distributions(self, context: Any = None) -> Iterator[Any]:
        """Yield metadata for the package where it is not installed; `importlib.metadata` calls this."""
        query = {} if context is None else vars(context)
        distribution = self.package.replace("_", "-")
        name = query.get("name") or distribution
        if name.replace("_", "-").lower() != distribution or "path" in query:  # queries of a folder list its files
            return
        from importlib.metadata import DistributionFinder, MetadataPathFinder

        from weft.compat.virtual_distribution import VirtualDistribution

        real = MetadataPathFinder.find_distributions(DistributionFinder.Context(name=distribution))
        if not any(True for _ in real):
            yield VirtualDistribution(distribution)


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
    """Return the folders of a real package; none if it is not installed."""
    spec = PathFinder.find_spec(name.partition(".")[0])
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    subfolders = name.split(".")[1:]
    return [os.path.join(folder, *subfolders) for folder in folders]  # noqa: PTH118 - at the start of every process


def install(*packages: str) -> None:
    """Make `import onnxruntime` return weft in this process. Modules that have imported it already keep theirs.

    packages: "onnxruntime", "onnxruntime_genai" or both; the first by default.
    """
    for package in packages or (ONNXRUNTIME,):
        if package not in PACKAGES:
            raise ValueError(f"weft replaces {' and '.join(PACKAGES)}, not {package!r}")
        if not is_installed(package):
            sys.meta_path.insert(0, OnnxruntimeFinder(package, _remove_modules(package)))


def uninstall() -> None:
    """Undo `install`: `import onnxruntime` returns the real one again, if it is installed."""
    for finder in [finder for finder in sys.meta_path if isinstance(finder, OnnxruntimeFinder)]:
        sys.meta_path.remove(finder)
        _remove_modules(finder.package)
        sys.modules.update(finder.real_modules)


def is_installed(package: str = ONNXRUNTIME) -> bool:
    """Whether `import onnxruntime`, or of another package, returns weft in this process."""
    return any(isinstance(finder, OnnxruntimeFinder) and finder.package == package for finder in sys.meta_path)


def install_from_environment() -> None:
    """Install what WEFT_COMPAT names. weft_compat.pth calls this at the start of processes that have the variable."""
    for name in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        if name in PACKAGES:
            install(name)
        else:
            warnings.warn(f"{VARIABLE}: weft replaces only {' and '.join(PACKAGES)}, not {name!r}", stacklevel=2)


install_as_told = install_from_environment  # the name in .pth files of environments that version 0.1 was installed in


def _remove_modules(package: str) -> dict[str, ModuleType]:
    """Remove the modules of a package from `sys.modules`, and return them."""
    names = [name for name in sys.modules if _belongs_to(package, name)]
    return {name: sys.modules.pop(name) for name in names}


def _belongs_to(package: str, name: str) -> bool:
    return name == package or name.startswith(f"{package}.")
