"""Incremental decoding: token by token, the text that a tokenizer's decoder gives for all tokens together.

A decoder of `tokenizers` is a chain of rules over a list of tokens. Most rules treat each token alone; these stages run
them with constant work per token, and hold back only text that a later token can still change: the bytes of an
incomplete character, and a run of byte tokens (`<0xE4>`), which is valid or invalid as a whole.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

BYTE_TOKEN = re.compile(r"<0x([0-9a-fA-F]{2}|\+[0-9a-fA-F])>")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Stage(Protocol):
    """A rule of a decoder: tokens in, tokens out, in order."""

    def put(self, token: str) -> Iterable[str]: ...

    def finish(self) -> Iterable[str]: ...


class TextStream:
    """Decode tokens one by one. Every piece is valid Unicode, and all together are `Tokenizer.decode` of the tokens."""

    def __init__(self, token_text: Callable[[int], str | None], stages: Sequence[Stage]) -> None:
        self._token_text = token_text
        self._stages = stages

    def put(self, token: int) -> str:
        """Add a token, and return the text that is certain now; it can be empty."""
        text = self._token_text(token)
        return "" if text is None else self._pass_on([text], 0)

    def finish(self) -> str:
        """Return the remaining text: an incomplete character becomes U+FFFD. The stream starts anew."""
        remainder = []
        for index, stage in enumerate(self._stages):
            remainder.append(self._pass_on(stage.finish(), index + 1))
        return "".join(remainder)

    def _pass_on(self, tokens: Iterable[str], first: int) -> str:
        for stage in self._stages[first:]:
            tokens = [result for token in tokens for result in stage.put(token)]
        return "".join(tokens)


def build_stages(decoder: bytes | None, decode_tokens: Callable[[list[str]], str]) -> list[Stage]:
    """Return new stages for the serialized decoder of a tokenizer.

    decode_tokens: the decoder itself, for chains with a rule that needs all tokens; their text comes with `finish`.
    """
    if decoder is None:
        return [JoinStage()]
    stages: list[Stage] = []
    is_whole = False  # whether a rule has joined all tokens
    for rule in flatten_rules(json.loads(decoder)):
        stage = None if rule["type"] == "Fuse" else _build_stage(rule, is_whole)
        if rule["type"] != "Fuse":
            if stage is None:
                return [WholeTextStage(decode_tokens)]
            stages.append(stage)
        is_whole = is_whole or rule["type"] in ("Fuse", "ByteLevel")
    return stages


def flatten_rules(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rules of a decoder and of the sequences in it, in order."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [rule for part in decoder["decoders"] for rule in flatten_rules(part)]


def _build_stage(rule: Mapping[str, Any], is_whole: bool) -> Stage | None:
    """Return a stage, or None for a rule that needs all tokens."""
    if is_whole:
        if rule["type"] == "Strip" and rule["stop"] == 0:
            return StripStartStage(rule["content"], rule["start"])
        return None
    match rule:
        case {"type": "ByteLevel"}:
            return ByteLevelStage()
        case {"type": "ByteFallback"}:
            return ByteFallbackStage()
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return PerTokenStage(lambda token, first: token.replace(pattern, content))  # noqa: ARG005
        case {"type": "Strip", "content": str(content), "start": int(start), "stop": int(stop)}:
            return PerTokenStage(lambda token, first: strip_token(token, content, start, stop))  # noqa: ARG005
        case {"type": "Metaspace", "replacement": str(mark)}:
            space = " " if rule.get("prepend_scheme", "always") == "never" else ""
            return PerTokenStage(lambda token, first: token.replace(mark, space if first else " "))
        case {"type": "WordPiece", "prefix": str(prefix), "cleanup": bool(cleanup)}:
            return PerTokenStage(_build_word_piece_function(prefix, cleanup))
    return None


class PerTokenStage:
    """A function of each token, and of whether it is the first."""

    def __init__(self, function: Callable[[str, bool], str]) -> None:
        self._function = function
        self._is_first = True

    def put(self, token: str) -> Iterable[str]:
        first, self._is_first = self._is_first, False
        return (self._function(token, first),)

    def finish(self) -> Iterable[str]:
        self._is_first = True
        return ()


class JoinStage:
    """Join tokens with spaces, as tokenizers without a decoder do."""

    def __init__(self) -> None:
        self._separator = ""

    def put(self, token: str) -> Iterable[str]:
        separator, self._separator = self._separator, " "
        return (separator + token,)

    def finish(self) -> Iterable[str]:
        self._separator = ""
        return ()


class ByteLevelStage:
    """Decode tokens whose characters stand for bytes, as of GPT-2."""

    def __init__(self) -> None:
        self._bytes = byte_values()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, token: str) -> Iterable[str]:
        try:
            content = bytes([self._bytes[character] for character in token])
        except KeyError:  # an added token, with characters that stand for themselves
            content = token.encode()
        return (self._decoder.decode(content),)

    def finish(self) -> Iterable[str]:
        return (self._decoder.decode(b"", final=True),)


class ByteFallbackStage:
    """Decode runs of byte tokens. If a run is not valid UTF-8, each of its bytes becomes U+FFFD."""

    def __init__(self) -> None:
        self._run = bytearray()

    def put(self, token: str) -> Iterable[str]:
        match = BYTE_TOKEN.fullmatch(token)
        if match:
            self._run.append(int(match[1], 16))
            return ()
        return (*self.finish(), token)

    def finish(self) -> Iterable[str]:
        if not self._run:
            return ()
        try:
            tokens = [self._run.decode()]
        except UnicodeDecodeError:
            tokens = [REPLACEMENT] * len(self._run)
        self._run = bytearray()
        return tokens


class StripStartStage:
    """Remove up to `count` characters from the start of the whole text."""

    def __init__(self, character: str, count: int) -> None:
        self._character = character
        self._count = count
        self._remaining = count

    def put(self, token: str) -> Iterable[str]:
        while self._remaining and token:
            if not token.startswith(self._character):
                self._remaining = 0
                break
            token = token[1:]
            self._remaining -= 1
        return (token,)

    def finish(self) -> Iterable[str]:
        self._remaining = self._count
        return ()


class WholeTextStage:
    """Hold all tokens until the end."""

    def __init__(self, decode_tokens: Callable[[list[str]], str]) -> None:
        self._decode_tokens = decode_tokens
        self._tokens: list[str] = []

    def put(self, token: str) -> Iterable[str]:
        self._tokens.append(token)
        return ()

    def finish(self) -> Iterable[str]:
        tokens, self._tokens = self._tokens, []
        return (self._decode_tokens(tokens),) if tokens else ()


def strip_token(token: str, character: str, start: int, stop: int) -> str:
    """Remove up to `start` and `stop` times a character from the ends of a token."""
    first = 0
    while first < min(start, len(token)) and token[first] == character:
        first += 1
    last = len(token)
    while len(token) - last < stop and last > first and token[last - 1] == character:
        last -= 1
    return token[first:last]


@cache
def byte_values() -> Mapping[str, int]:
    """Return the byte of each character of the byte-level alphabet.

    Bytes that are printable in Latin-1 are their own characters; the others follow from U+0100 on, in order.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    own = [character for character in alphabet if ord(character) < 256]
    others = sorted(set(range(256)) - set(map(ord, own)))
    return {character: ord(character) for character in own} | dict(zip(alphabet[len(own) :], others, strict=True))


def _build_word_piece_function(prefix: str, cleanup: bool) -> Callable[[str, bool], str]:
    from tokenizers.decoders import WordPiece

    decoder = WordPiece(prefix=prefix, cleanup=cleanup)

    def decode_word_piece(token: str, first: bool) -> str:
        return decoder.decode([token]) if first else decoder.decode(["x", token])[1:]

    return decode_word_piece
