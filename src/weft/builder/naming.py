"""The Python names of ops: map an op to the name of its function, and a domain to the name of its module."""

from __future__ import annotations

import keyword
import re

from weft import opset
from weft.opset import registry

assert opset  # importing the package defines the ops

_WORD = re.compile(r"NaN|MoE|SwiGLU|PRelu|Col2Im|[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*")


def python_name(op: str) -> str:
    """Return the name of an op's function: snake case, with an underscore after Python keywords."""
    name = "_".join(_WORD.findall(op)).lower()
    return f"{name}_" if keyword.iskeyword(name) else name


def function_names(domain: str) -> dict[str, str]:
    """Map the function names of a domain to ops."""
    return {python_name(each.name): each.name for each in registry.definitions() if each.domain == domain}


def module_name(domain: str) -> str:
    """Return the name of a domain's module in `weft.ops`, such as "microsoft" for "com.microsoft"."""
    return re.sub(r"^(ai\.onnx|com)\.", "", domain).replace(".", "_")
