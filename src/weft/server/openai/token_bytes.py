"""The bytes that tokens stand for, for reports of log probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.generation.text_stream import BYTE_TOKEN, byte_values

if TYPE_CHECKING:
    from weft.generation.tokenizer import Tokenizer


class TokenBytes:
    """Finds the bytes of tokens: a character can be divided between tokens, so that these have no text of their own."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        decoder = None if tokenizer is None else tokenizer.backend.decoder
        self._is_byte_level = decoder is not None and "ByteLevel" in str(decoder)
        self._contents: dict[int, bytes] = {}

    def find(self, token: int) -> bytes:
        """Return the bytes of a token; those of a special token are its name."""
        content = self._contents.get(token)
        if content is None:
            content = self._contents[token] = self._decode(token)
        return content

    def _decode(self, token: int) -> bytes:
        tokenizer = self._tokenizer
        text = None if tokenizer is None else tokenizer.text_of(token)
        if tokenizer is None or text is None:
            return b""
        if token in tokenizer.special_ids:
            return text.encode()
        if self._is_byte_level:
            values = byte_values()
            return bytes(map(values.__getitem__, text)) if all(map(values.__contains__, text)) else text.encode()
        match = BYTE_TOKEN.fullmatch(text)
        if match:
            return bytes([int(match[1], 16)])
        stream = tokenizer.stream()  # which sees the token behind another, where its first space is kept
        before = stream.put(token)
        return (stream.put(token) or before).encode()
