"""Read the messages of a chat completion into what chat templates take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weft.server.openai.chat_format import ChatFormat
from weft.server.openai.fields import Fields

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")


def read_messages(fields: Fields, chat_format: ChatFormat) -> list[dict[str, Any]]:
    """Return the messages of a request."""
    sections = fields.sections("messages")
    if not sections:
        raise fields.error("messages", "messages must be a list of at least one message")
    names: dict[str, str] = {}  # of functions, by the ids of their calls
    return [_read_message(section, chat_format, names) for section in sections]


def _read_message(fields: Fields, chat_format: ChatFormat, names: dict[str, str]) -> dict[str, Any]:
    role = fields.choice("role", ROLES)
    if role is None:
        raise fields.error("role", f"{fields.place}role is missing: it must be one of {', '.join(ROLES)}")
    if role == "developer" and not chat_format.has_developer:
        role = "system"
    message: dict[str, Any] = {"role": role, "content": _read_content(fields, role)}
    for name in ("name", "reasoning_content", "tool_call_id"):
        text = fields.text(name)
        if text is not None:
            message[name] = text
    if role == "assistant":
        calls = [_read_call(section, chat_format, names) for section in fields.sections("tool_calls")]
        if calls:
            message["tool_calls"] = calls
    if role == "tool" and "name" not in message and message.get("tool_call_id") in names:
        message["name"] = names[message["tool_call_id"]]
    return message


def _read_content(fields: Fields, role: str) -> str:
    content = fields.get("content")
    if isinstance(content, list):
        return "\n".join(_read_part(part) for part in fields.sections("content"))
    text = fields.text("content")
    if text is None:
        if role != "assistant":
            raise fields.error("content", f"{fields.place}content is missing: it must be a string, or a list of parts")
        return fields.text("refusal") or ""
    return text


def _read_part(fields: Fields) -> str:
    kind = fields.required_text("type")
    if kind == "refusal":
        return fields.required_text("refusal")
    if kind not in TEXT_PARTS:
        problem = f'{fields.place}type is {kind[:40]!r}, and this model reads text alone: send parts of type "text"'
        raise fields.error("type", problem, code="unsupported_content")
    return fields.required_text("text")


def _read_call(fields: Fields, chat_format: ChatFormat, names: dict[str, str]) -> Mapping[str, Any]:
    """Return an earlier call of a tool, with its arguments in the form that the template takes."""
    function = fields.section("function")
    if function is None:
        raise fields.error("function", f"{fields.place}function is missing: it must have name and arguments")
    name = function.required_text("name")
    arguments: Any = function.get("arguments")
    if isinstance(arguments, str):
        text = function.required_text("arguments")
        try:
            arguments = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            raise function.error("arguments", f"{function.place}arguments is not JSON") from None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise function.error("arguments", f"{function.place}arguments must be a JSON object")
    tool_format = chat_format.tool_format
    if tool_format is not None and tool_format.takes_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    identifier = fields.text("id")
    if identifier is not None:
        call["id"] = identifier
        names[identifier] = name
    return call
