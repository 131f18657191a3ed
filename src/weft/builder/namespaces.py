"""The functions of a domain by their names, each made when it is first asked for: the modules of `weft.ops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.builder.control import SPECIAL
from weft.builder.functions import function
from weft.builder.naming import names_of


class Functions:
    """The functions of one domain's ops, as attributes. Ops that users define later are there as soon as they are."""

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._made: dict[str, Callable[..., Any]] = {} if domain else dict(SPECIAL)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self._made:
            op = names_of(self._domain).get(name)
            if op is None:
                raise AttributeError(f"weft defines no op {name!r} in the domain {self._domain or 'ai.onnx'}")
            self._made[name] = function(self._domain, op)
        return self._made[name]

    def __dir__(self) -> list[str]:
        return sorted(names_of(self._domain))
