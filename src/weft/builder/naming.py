"""How ops are called in Python: one rule from an op's name to its function's, and from a domain to its module's."""

from __future__ import annotations

import keyword
import re

from weft import opset
from weft.opset import registry

assert opset  # importing the package defines the ops

_WORD = re.compile(r"NaN|MoE|SwiGLU|PRelu|Col2Im|[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*")


def python_name(op: str) -> str:
    """The name of an op's function: its words in lower case, joined by underscores; keywords end with one."""
    name = "_".join(_WORD.findall(op)).lower()
    return f"{name}_" if keyword.iskeyword(name) else name


def names_of(domain: str) -> dict[str, str]:
    """Function name -> op, of a domain."""
    return {python_name(each.name): each.name for each in registry.definitions() if each.domain == domain}


def module_name(domain: str) -> str:
    """The name of a domain's module in `weft.ops`: its own without what all have, its dots as underscores."""
    return re.sub(r"^(ai\.onnx|com)\.", "", domain).replace(".", "_")
