"""`import onnxruntime` that gives weft: a finder before all others, and what packages look up about onnxruntime.

The modules that it gives hold what the modules of `weft.compat.onnxruntime` do, under the names that programs know.
All others of onnxruntime's (quantization, transformers, tools) are those of the real one, where that is installed.
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

REPLACED = "onnxruntime"
VARIABLE = "WEFT_COMPAT"
API_LEVEL = "1.31.1"
"""The version of onnxruntime whose Python interface this is: what it is compared with."""
_SOURCE = "weft.compat"
_PACKAGES = (REPLACED, f"{REPLACED}.backend", f"{REPLACED}.capi")
_MODULES = (
    *_PACKAGES,
    f"{REPLACED}.backend.backend",
    f"{REPLACED}.backend.backend_rep",
    f"{REPLACED}.capi._pybind_state",
    f"{REPLACED}.capi.build_and_package_info",
    f"{REPLACED}.capi.onnxruntime_inference_collection",
    f"{REPLACED}.capi.onnxruntime_pybind11_state",
    f"{REPLACED}.capi.onnxruntime_validation",
)
_OWN = ("__name__", "__spec__", "__loader__", "__package__", "__path__", "__cached__", "__builtins__")


class OnnxruntimeFinder:
    """Finds weft where onnxruntime is asked for. `put_aside` are modules of the real one that were loaded before."""

    def __init__(self) -> None:
        self.put_aside: dict[str, ModuleType] = {}

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name not in _MODULES:
            return None
        loader: Any = _WeftLoader(f"{_SOURCE}.{name}")
        spec = ModuleSpec(name, loader, origin=_file(name), is_package=name in _PACKAGES)
        spec.has_location = True
        if name in _PACKAGES:
            spec.submodule_search_locations = real_locations(name)
        return spec

    def find_distributions(self, context: Any = None) -> Iterator[Any]:
        """What `importlib.metadata` tells of onnxruntime where it is not installed."""
        asked = {} if context is None else vars(context)
        wanted = asked.get("name") or REPLACED
        if wanted.replace("_", "-").lower() != REPLACED or "path" in asked:  # a folder's list is what lies there
            return
        from importlib.metadata import DistributionFinder, MetadataPathFinder

        from weft.compat.virtual_distribution import StandIn

        real = MetadataPathFinder.find_distributions(DistributionFinder.Context(name=REPLACED))
        if not any(True for _ in real):
            yield StandIn()


class _WeftLoader:
    """Fills a module with what one of weft's holds."""

    def __init__(self, source: str) -> None:
        self._source = source

    def create_module(self, _: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        source = import_module(self._source)
        for name, content in vars(source).items():
            if name not in _OWN and not _is_inner(content):
                setattr(module, name, content)


def _is_inner(content: Any) -> bool:
    """Whether it is a module that onnxruntime does not have."""
    return isinstance(content, ModuleType) and content.__name__.removeprefix(f"{_SOURCE}.") not in _MODULES


def _file(name: str) -> str:
    """Where a module's content is from."""
    base = os.path.join(os.path.dirname(__file__), *name.split("."))  # noqa: PTH118, PTH120 - as below
    return os.path.join(base, "__init__.py") if name in _PACKAGES else f"{base}.py"  # noqa: PTH118


def real_locations(name: str) -> list[str]:
    """The folders of a package of the real onnxruntime's; none where that is not installed."""
    found = PathFinder.find_spec(REPLACED)
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    below = name.split(".")[1:]
    return [os.path.join(folder, *below) for folder in folders]  # noqa: PTH118 - at the start of every process


def install() -> None:
    """Make `import onnxruntime` mean weft, in this process. Who has imported it already keeps what he has."""
    if is_installed():
        return
    finder = OnnxruntimeFinder()
    finder.put_aside = _taken_out()
    sys.meta_path.insert(0, finder)


def uninstall() -> None:
    """Undo `install`: onnxruntime is the real one again, if there is one."""
    for finder in [finder for finder in sys.meta_path if isinstance(finder, OnnxruntimeFinder)]:
        sys.meta_path.remove(finder)
        _taken_out()
        sys.modules.update(finder.put_aside)


def is_installed() -> bool:
    """Whether `import onnxruntime` means weft here."""
    return any(isinstance(finder, OnnxruntimeFinder) for finder in sys.meta_path)


def install_as_told() -> None:
    """Install what WEFT_COMPAT names: this runs at the start of Python processes where the variable is set."""
    for name in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        if name == REPLACED:
            install()
        else:
            warnings.warn(f"{VARIABLE}: weft has no stand-in for {name!r}, only for {REPLACED}", stacklevel=2)


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == REPLACED or name.startswith(f"{REPLACED}.")]
    return {name: sys.modules.pop(name) for name in names}
