"""C types by name, without parsing, which would take a good part of the first second with wgpu.

wgpu's Python layer names C types in texts, and cffi parses each text together with all declarations of the library,
which takes some 45 ms a type. Texts that are a name with stars or brackets need no parser. This goes through cffi's own
records of declarations; where these are not as expected, types are parsed as ever.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

_SIMPLE = re.compile(r" *(\w+) *(\*|\[ *\])? *")


def quicken(ffi: Any) -> None:
    """Let an FFI know simple types by their names."""
    try:
        model = import_module("cffi.model")

        parser = ffi._parser
        parse, declarations = parser.parse_type, parser._declarations
        primitive, pointer, array = model.PrimitiveType, model.PointerType, model.ArrayType
        known = primitive.ALL_PRIMITIVE_TYPES
    except (ImportError, AttributeError):
        return

    def parse_type(text: str) -> Any:
        found = _SIMPLE.fullmatch(text)
        if found is not None:
            name, kind = found.groups()
            base = declarations.get(f"typedef {name}", (None, 0))[0]
            if base is None and name in known:
                base = primitive(name)
            if base is not None and not getattr(base, "is_raw_function", False):
                return base if kind is None else pointer(base) if kind == "*" else array(base, None)
        return parse(text)

    parser.parse_type = parse_type
