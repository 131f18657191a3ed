"""Functions of the real onnxruntime's extension module that its own tools need, and that run no model."""

from __future__ import annotations

from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.compat.installation import real_locations
from weft.compat.onnxruntime.naming import STATE
from weft.compat.onnxruntime.unsupported import refuse_call

_TAKEN = ("quantize_", "pack_")  # what their names begin with


def real_function(name: str) -> Any:
    """Get a function of the real module, or one that raises where that is not installed; None for other names."""
    if not name.startswith(_TAKEN):
        return None
    module = _real_module()
    if module is None:
        return refuse_call(name, "it is onnxruntime's own: install onnxruntime beside weft")
    return getattr(module, name, None)


@cache
def _real_module() -> ModuleType | None:
    """The real one, which nobody else gets to see."""
    package, _, module = STATE.rpartition(".")
    for folder in real_locations(package):
        for suffix in EXTENSION_SUFFIXES:
            path = Path(folder) / f"{module}{suffix}"
            if path.exists():
                loader = ExtensionFileLoader(STATE, str(path))
                made = module_from_spec(ModuleSpec(STATE, loader, origin=str(path)))
                loader.exec_module(made)
                return made
    return None
