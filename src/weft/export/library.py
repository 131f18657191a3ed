"""Emit the functions of an exported model that open and check its weights and describe errors.

A model is two pointers: its weights, and the memory that it owns if it was opened from a file.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.export.interface import (
    NO_FILE,
    NO_MEMORY,
    NULL_ARGUMENT,
    WRONG_CONTENT,
    WRONG_LENGTH,
    Interface,
)
from weft.export.weights import ALIGNMENT, CHECKSUM_CODE

DECLARATIONS = {
    "memmove": "declare ptr @memmove(ptr, ptr, i64)",
    "malloc": "declare ptr @malloc(i64)",
    "free": "declare void @free(ptr)",
    "fopen": "declare ptr @fopen(ptr, ptr)",
    "fread": "declare i64 @fread(ptr, i64, i64, ptr)",
    "fgetc": "declare i32 @fgetc(ptr)",
    "fclose": "declare i32 @fclose(ptr)",
}


def emit_library(interface: Interface, length: int, checksum: int, embedded: bytes | None) -> str:
    """Emit all functions of this module; `embedded` are weights to store in the object."""
    name = interface.name
    signed = checksum - 2**64 if checksum >= 2**63 else checksum
    parts = [
        CHECKSUM_CODE.format(name=name),
        _BIND.format(name=name, length=length, checksum=signed, mask=ALIGNMENT - 1, **_ERRORS),
        _CLOSE.format(name=name),
        _emit_error_text(name, interface.errors),
    ]
    if embedded is None:
        parts.append(_OPEN.format(name=name, length=length, room=length + ALIGNMENT, mask=ALIGNMENT - 1, **_ERRORS))
    else:
        parts.append(_OPEN_EMBEDDED.format(name=name, length=length, **_ERRORS))
        parts.insert(0, emit_constant(f"{name}.weights", embedded))
    return "\n".join(parts)


def emit_constant(name: str, content: bytes) -> str:
    """Emit bytes as a constant of the object, followed by a 0 so that it is never empty."""
    escaped = "".join(("\\", content.hex("\\"))) if content else ""
    return f'@"{name}" = internal constant [{len(content) + 1} x i8] c"{escaped}\\00", align {ALIGNMENT}\n'


def _emit_error_text(name: str, errors: Mapping[int, str]) -> str:
    """Emit the function that maps an error to its description."""
    lines, cases, blocks = [], [], []
    for number, text in {**errors, -1: "unknown error"}.items():
        data = text.encode() + b"\0"
        escaped = "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in data)
        label = "other" if number < 0 else f"error{number}"
        lines.append(f'@"{name}.text.{label}" = private constant [{len(data)} x i8] c"{escaped}"')
        if number >= 0:
            cases.append(f"    i32 {number}, label %{label}")
        blocks.append(f'{label}:\n  ret ptr @"{name}.text.{label}"')
    switch = "\n".join(("  switch i32 %error, label %other [", *cases, "  ]"))
    return "\n".join(
        (*lines, f'define ptr @"{name}_error_text"(i32 %error) nounwind {{', "entry:", switch, *blocks, "}")
    )


_ERRORS = {
    "null": NULL_ARGUMENT,
    "wrong_length": WRONG_LENGTH,
    "wrong_content": WRONG_CONTENT,
    "no_file": NO_FILE,
    "no_memory": NO_MEMORY,
}

_BIND = """
define i32 @"{name}_bind"(ptr %model, ptr %weights, i64 %length) nounwind {{
entry:
  %nothing = icmp eq ptr %model, null
  br i1 %nothing, label %null, label %clear
clear:
  store ptr null, ptr %model, align 8
  %memory.place = getelementptr ptr, ptr %model, i64 1
  store ptr null, ptr %memory.place, align 8
  %no.weights = icmp eq ptr %weights, null
  %address = ptrtoint ptr %weights to i64
  %low = and i64 %address, {mask}
  %uneven = icmp ne i64 %low, 0
  %unusable = or i1 %no.weights, %uneven
  br i1 %unusable, label %null, label %measure
measure:
  %same = icmp eq i64 %length, {length}
  br i1 %same, label %sum, label %wrong.length
sum:
  %sum.actual = call i64 @"{name}.checksum"(ptr %weights, i64 %length)
  %right = icmp eq i64 %sum.actual, {checksum}
  br i1 %right, label %keep, label %wrong.content
keep:
  store ptr %weights, ptr %model, align 8
  ret i32 0
null:
  ret i32 {null}
wrong.length:
  ret i32 {wrong_length}
wrong.content:
  ret i32 {wrong_content}
}}
"""

_OPEN = """
@"{name}.mode" = private constant [3 x i8] c"rb\\00"

define i32 @"{name}_open"(ptr %model, ptr %path) nounwind {{
entry:
  %no.model = icmp eq ptr %model, null
  %no.path = icmp eq ptr %path, null
  %nothing = or i1 %no.model, %no.path
  br i1 %nothing, label %null, label %start
start:
  store ptr null, ptr %model, align 8
  %memory.place = getelementptr ptr, ptr %model, i64 1
  store ptr null, ptr %memory.place, align 8
  %file = call ptr @fopen(ptr %path, ptr @"{name}.mode")
  %no.file = icmp eq ptr %file, null
  br i1 %no.file, label %missing, label %reserve
reserve:
  %memory = call ptr @malloc(i64 {room})
  %none = icmp eq ptr %memory, null
  br i1 %none, label %full, label %read
read:
  %address = ptrtoint ptr %memory to i64
  %negative = sub i64 0, %address
  %gap = and i64 %negative, {mask}
  %weights = getelementptr i8, ptr %memory, i64 %gap
  %got = call i64 @fread(ptr %weights, i64 1, i64 {length}, ptr %file)
  %more = call i32 @fgetc(ptr %file)
  call i32 @fclose(ptr %file)
  %whole = icmp eq i64 %got, {length}
  %over = icmp slt i32 %more, 0
  %exact = and i1 %whole, %over
  br i1 %exact, label %check, label %wrong
check:
  %error = call i32 @"{name}_bind"(ptr %model, ptr %weights, i64 {length})
  %fine = icmp eq i32 %error, 0
  br i1 %fine, label %keep, label %refuse
keep:
  store ptr %memory, ptr %memory.place, align 8
  ret i32 0
refuse:
  call void @free(ptr %memory)
  ret i32 %error
wrong:
  call void @free(ptr %memory)
  ret i32 {wrong_length}
full:
  call i32 @fclose(ptr %file)
  ret i32 {no_memory}
missing:
  ret i32 {no_file}
null:
  ret i32 {null}
}}
"""

_OPEN_EMBEDDED = """
define i32 @"{name}_open"(ptr %model, ptr %path) nounwind {{
  %error = call i32 @"{name}_bind"(ptr %model, ptr @"{name}.weights", i64 {length})
  ret i32 %error
}}
"""

_CLOSE = """
define void @"{name}_close"(ptr %model) nounwind {{
entry:
  %nothing = icmp eq ptr %model, null
  br i1 %nothing, label %end, label %release
release:
  %memory.place = getelementptr ptr, ptr %model, i64 1
  %memory = load ptr, ptr %memory.place, align 8
  call void @free(ptr %memory)
  store ptr null, ptr %model, align 8
  store ptr null, ptr %memory.place, align 8
  br label %end
end:
  ret void
}}
"""
