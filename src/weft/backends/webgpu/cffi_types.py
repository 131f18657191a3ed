"""Look up C types of wgpu by name, which makes its first use much faster.

wgpu's Python layer names C types as text, and cffi parses each together with all declarations of the library, about
45 ms per type. A name with a star or brackets needs no parser: it is looked up in cffi's internal declarations. If
these are not as expected, types are parsed as usual.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

_SIMPLE = re.compile(r" *(\w+) *(\*|\[ *\])? *")


def speed_up_type_lookup(ffi: Any) -> None:
    """Let an FFI look up simple types without parsing."""
    try:
        model = import_module("cffi.model")

        parser = ffi._parser
        parse, declarations = parser.parse_type, parser._declarations
        primitive, pointer, array = model.PrimitiveType, model.PointerType, model.ArrayType
        primitive_names = primitive.ALL_PRIMITIVE_TYPES
    except (ImportError, AttributeError):
        return

    def parse_type(text: str) -> Any:
        match = _SIMPLE.fullmatch(text)
        if match is not None:
            name, kind = match.groups()
            base = declarations.get(f"typedef {name}", (None, 0))[0]
            if base is None and name in primitive_names:
                base = primitive(name)
            if base is not None and not getattr(base, "is_raw_function", False):
                return base if kind is None else pointer(base) if kind == "*" else array(base, None)
        return parse(text)

    parser.parse_type = parse_type
