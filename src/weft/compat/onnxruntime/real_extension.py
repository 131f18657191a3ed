"""Functions of the real onnxruntime's extension module that its tools need and that run no model."""

from __future__ import annotations

from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.compat.installation import real_locations
from weft.compat.onnxruntime.naming import STATE
from weft.compat.onnxruntime.unsupported import unsupported_function

_PREFIXES = ("quantize_", "pack_")


def get_real_function(name: str) -> Any:
    """Return a function of the real module, or one that raises if that is not installed; None for other names."""
    if not name.startswith(_PREFIXES):
        return None
    module = _real_module()
    if module is None:
        return unsupported_function(name, "it is onnxruntime's own: install onnxruntime beside weft")
    return getattr(module, name, None)


@cache
def _real_module() -> ModuleType | None:
    """Load the real module without adding it to `sys.modules`."""
    package, _, module = STATE.rpartition(".")
    for folder in real_locations(package):
        for suffix in EXTENSION_SUFFIXES:
            path = Path(folder) / f"{module}{suffix}"
            if path.exists():
                loader = ExtensionFileLoader(STATE, str(path))
                real = module_from_spec(ModuleSpec(STATE, loader, origin=str(path)))
                loader.exec_module(real)
                return real
    return None
