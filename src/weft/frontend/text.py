"""Check that every string in a parsed model is UTF-8.

protobuf returns an invalid string as bytes, which would go unnoticed until it is compared with another name.
"""

from __future__ import annotations

from typing import Any

import onnx

from weft.errors import InvalidModelError


def check_text(model: onnx.ModelProto) -> None:
    """Raise InvalidModelError if any string of a model is not UTF-8."""
    waiting: list[Any] = [model]
    while waiting:
        message = waiting.pop()
        for field, content in message.ListFields():
            if field.message_type is not None:
                waiting.extend((content,) if hasattr(content, "ListFields") else content)
            elif field.type == field.TYPE_STRING:
                for text in (content,) if isinstance(content, (str, bytes)) else content:
                    if not isinstance(text, str):
                        raise InvalidModelError(
                            f"the {field.name} {text!r} of a {message.DESCRIPTOR.name} is not UTF-8",
                            hint="the file is damaged; fetch or export it again",
                        )
