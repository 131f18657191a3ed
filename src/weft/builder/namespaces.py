"""The functions of a domain by name, each made at its first use: the modules of `weft.ops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.builder.control import SPECIAL
from weft.builder.functions import make_function
from weft.builder.naming import function_names


class Functions:
    """The functions of one domain's ops, as attributes, including ops that users define later."""

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._functions: dict[str, Callable[..., Any]] = {} if domain else dict(SPECIAL)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            op = function_names(self._domain).get(name)
            if op is None:
                raise AttributeError(f"weft defines no op {name!r} in the domain {self._domain or 'ai.onnx'}")
            self._functions[name] = make_function(self._domain, op)
        return self._functions[name]

    def __dir__(self) -> list[str]:
        return sorted(function_names(self._domain))
