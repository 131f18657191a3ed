"""Read the tools of a request, and what it says about the choice of one."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.server.openai.chat_format import ChatFormat
from weft.server.openai.fields import Fields
from weft.server.openai.tool_formats import LONG_ID, ToolFormat

NONE, AUTO, REQUIRED = "none", "auto", "required"
NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
MOST_TOOLS = 1024
ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    listed: what the chat template gets. schemas: of the arguments, by the names of tools.
    mode: NONE, AUTO or REQUIRED. allowed: the names of the tools that a required call may have.
    most_calls: None for any number.
    """

    listed: Sequence[Mapping[str, Any]] = ()
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mode: str = NONE
    allowed: tuple[str, ...] = ()
    most_calls: int | None = None


def read_tools(fields: Fields, chat_format: ChatFormat) -> Tools:
    """Return the tools of a request; without any, the mode is NONE."""
    sections = fields.sections("tools")
    choice = fields.get("tool_choice")
    if not sections:
        if choice not in (None, NONE, AUTO):
            raise fields.error("tool_choice", "tool_choice needs tools: pass them, or leave it out")
        return Tools()
    if len(sections) > MOST_TOOLS:
        raise fields.error("tools", f"tools has {len(sections):,} functions; the most are {MOST_TOOLS:,}")
    schemas: dict[str, Mapping[str, Any]] = {}
    listed = [_read_tool(section, schemas) for section in sections]
    mode, allowed = _read_choice(fields, schemas)
    if mode == NONE:
        return Tools()
    if chat_format.tool_format is None:
        problem = "the chat template of this model takes no tools: leave them out, or use another model"
        raise fields.error("tools", problem, code="unsupported_parameter")
    most_calls = None if fields.flag("parallel_tool_calls", default=True) else 1
    return Tools(listed, schemas, mode, allowed, most_calls)


def make_call_id(tool_format: ToolFormat) -> str:
    """Return a new id for a call."""
    letters = "".join(secrets.choice(ALPHABET) for _ in range(tool_format.id_length))
    return f"call_{letters}" if tool_format.id_length == LONG_ID else letters


def _read_tool(fields: Fields, schemas: dict[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Read one tool, and add its schema to `schemas`."""
    if fields.choice("type", ("function",)) is None:
        raise fields.error("type", f'{fields.place}type is missing: it must be "function"')
    function = fields.section("function")
    if function is None:
        raise fields.error("function", f"{fields.place}function is missing: it must have a name")
    name = function.required_text("name")
    if not NAME.fullmatch(name):
        problem = (
            f"{function.place}name must be up to 128 letters, digits, underscores, dots and hyphens, not {name[:40]!r}"
        )
        raise function.error("name", problem)
    if name in schemas:
        raise function.error("name", f"{function.place}name is {name!r}, as that of another tool: name them apart")
    function.text("description")
    section = function.section("parameters")
    schemas[name] = NO_PARAMETERS if section is None or not section.content else section.content
    described = {key: entry for key, entry in function.content.items() if key != "strict" and entry is not None}
    described.setdefault("parameters", schemas[name])
    return {"type": "function", "function": described}


def _read_choice(fields: Fields, schemas: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the mode, and the names of the tools that may be called."""
    choice = fields.get("tool_choice")
    if choice is None:
        return AUTO, ()
    if isinstance(choice, str) and choice in (NONE, AUTO, REQUIRED):
        return choice, tuple(schemas) if choice == REQUIRED else ()
    if isinstance(choice, dict):
        section = fields.section("tool_choice")
        function = None if section is None else section.section("function")
        if function is not None:
            name = function.required_text("name")
            if name not in schemas:
                raise function.error("name", f"tool_choice.function.name is {name[:40]!r}, which is not one of tools")
            return REQUIRED, (name,)
    expected = '"none", "auto", "required", or {"type": "function", "function": {"name": …}}'
    raise fields.mismatch("tool_choice", expected)
