"""The status page at `/`, and the figures that it shows at `/status.json`.

The page is one file without data: its script reads `/status.json`, with the server's key if there is one. Names,
reasons and outputs of models are untrusted: the script shows them as text alone, and the content security policy
allows no other script and no other server.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING

from weft.report.html import policy_source, read_asset
from weft.server.http import Headers, Request, Response, Route, json_response
from weft.server.pages.status import describe_status

if TYPE_CHECKING:
    from weft.server.asgi import Application

STYLES = ("status.css",)
SCRIPTS = ("charts.js", "status.js", "try_tensors.js", "try_text.js", "start.js")
NO_STORE = (b"cache-control", b"no-store")


def page_routes(app: Application) -> list[Route]:
    """Return the routes of the page and of its figures."""
    started = time.monotonic()

    async def show_page(request: Request) -> Response:  # noqa: ARG001
        content, headers = render_page(has_key=app.settings.api_key is not None)
        return Response(content, headers=headers)

    async def show_status(request: Request) -> Response:  # noqa: ARG001
        return json_response(await describe_status(app, time.monotonic() - started), headers=(NO_STORE,))

    return [
        Route("GET", "/", show_page, "v2", "The status page"),
        Route("GET", "/status.json", show_status, "v2", "The figures of the status page"),
    ]


@lru_cache(maxsize=2)
def render_page(has_key: bool) -> tuple[bytes, Headers]:
    """Return the page and its headers.

    has_key: whether the page asks for the server's key.
    """
    style = read_asset("common.css") + "".join(_read_own_asset(name) for name in STYLES)
    script = read_asset("common.js") + "".join(_read_own_asset(name) for name in SCRIPTS)
    parts = {"@STYLE@": style, "@SCRIPT@": script, "@HAS_KEY@": "true" if has_key else "false"}
    pieces = _read_own_asset("status.html").split("|")
    content = "".join(parts.get(piece, piece) for piece in pieces).encode()
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; style-src {policy_source(style)}; script-src {policy_source(script)}"
    )
    headers = (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cache-control", b"no-cache"),
    )
    return content, headers


def _read_own_asset(name: str) -> str:
    return read_asset(name, "weft.server.pages")
