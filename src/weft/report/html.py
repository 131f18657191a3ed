"""One HTML page that needs nothing else: no network, no server, any screen.

A page is a fixed template with its styles and scripts, and data as JSON inside. Names in the data come from files that
nobody has checked: they are in the page only as escaped JSON, the script shows them as text, and the page's content
policy runs no script but its own.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any


def page(template: str, title: str, data: Any, styles: Sequence[str], scripts: Sequence[str]) -> str:
    """The page of a template, by the names of its parts among the assets."""
    style, script = "".join(map(_asset, styles)), "".join(map(_asset, scripts))
    parts = {
        "@TITLE@": escape(title),
        "@POLICY@": f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}",
        "@STYLE@": style,
        "@SCRIPT@": script,
        "@DATA@": inside_script(data),
    }
    pieces = _asset(template).split("|")
    return "".join(parts.get(piece, piece) for piece in pieces).encode(errors="backslashreplace").decode()


def _asset(name: str) -> str:
    return (files("weft.report") / "assets" / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """What a content policy calls exactly this text."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def inside_script(data: Any) -> str:
    """JSON in which nothing can end the element around it or start a comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
