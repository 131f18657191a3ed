"""Render one self-contained HTML page: it needs no network and no server.

A page is a template with styles, scripts and JSON data. Names in the data come from untrusted files: they are in the
page only as escaped JSON, the script shows them as text, and the content security policy allows no other script.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any


def render_page(template: str, title: str, data: Any, styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Fill a template; it, the styles and the scripts are names of assets."""
    style, script = "".join(map(read_asset, styles)), "".join(map(read_asset, scripts))
    parts = {
        "@TITLE@": escape(title),
        "@POLICY@": f"default-src 'none'; style-src {policy_source(style)}; script-src {policy_source(script)}",
        "@STYLE@": style,
        "@SCRIPT@": script,
        "@DATA@": script_json(data),
    }
    pieces = read_asset(template).split("|")
    return "".join(parts.get(piece, piece) for piece in pieces).encode(errors="backslashreplace").decode()


def read_asset(name: str, package: str = "weft.report") -> str:
    """Return the text of an asset of a package."""
    return (files(package) / "assets" / name).read_text(encoding="utf-8")


def policy_source(text: str) -> str:
    """Return the digest by which a content security policy allows a text."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def script_json(data: Any) -> str:
    """Return JSON that can neither end the script element around it nor start a comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
