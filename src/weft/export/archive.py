"""Write a static library of one object, in the System V archive format of ELF linkers."""

from __future__ import annotations

from collections.abc import Sequence


def make_archive(member: str, content: bytes, symbols: Sequence[str]) -> bytes:
    """Make a library with an index of the symbols that the object defines."""
    names = b"".join(symbol.encode() + b"\0" for symbol in symbols)
    index_length = 4 + 4 * len(symbols) + len(names)
    long_name = f"{member}/\n".encode()
    start = 8 + 60 + _round_to_even(index_length) + 60 + _round_to_even(len(long_name))
    index = len(symbols).to_bytes(4, "big") + start.to_bytes(4, "big") * len(symbols) + names
    parts = [b"!<arch>\n", *_entry("/", index), *_entry("//", long_name), *_entry("/0", content)]
    return b"".join(parts)


def _round_to_even(length: int) -> int:
    return length + length % 2


def _entry(name: str, content: bytes) -> tuple[bytes, bytes, bytes]:
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return head, content, b"\n" * (len(content) % 2)
