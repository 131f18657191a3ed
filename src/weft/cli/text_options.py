"""Options of commands that generate text, the stream of an answer, and its figures."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli import option_types, options, output
from weft.errors import InputError
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.generation.answers import AnswerStream
    from weft.generation.generator import Generator

SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k", "seed", "stop", "json_schema")
"""Options of `weft.GenerationOptions` that the command line has, with the same names."""


def add_text_options(parser: ArgumentParser, max_new_tokens: int | None) -> None:
    """Add options of answers and of the generator."""
    limit = "up to the context" if max_new_tokens is None else str(max_new_tokens)
    group = parser.add_argument_group("answer")
    group.add_argument(
        "--max-new-tokens",
        type=option_types.count,
        default=max_new_tokens,
        metavar="N",
        help=f"most tokens of an answer (default {limit})",
    )
    group.add_argument(
        "--temperature", type=float, metavar="T", help="0 takes the likeliest token (default: the model's)"
    )
    group.add_argument("--top-p", type=float, metavar="P", help="sample from the likeliest tokens, up to this sum")
    group.add_argument("--top-k", type=int, metavar="K", help="sample from the K likeliest tokens; 0 for all")
    group.add_argument("--seed", type=option_types.seed, metavar="N", help="the same seed gives the same text")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end the answer before this text; may be repeated"
    )
    group.add_argument(
        "--json-schema", metavar="SCHEMA", help="a JSON schema that the answer must match: a file, or its text"
    )
    group.add_argument("--system", metavar="TEXT", help="the system prompt of a chat")
    options.add_loading(parser, without=("precision", "trusted"))
    group = parser.add_argument_group("model")
    group.add_argument("--variant", metavar="V", help="the variant of a folder with several, such as q4 or fp16")
    group.add_argument(
        "--max-length",
        type=option_types.count,
        metavar="N",
        help="most tokens of prompt and answer together (default: the model's context, at most 4096)",
    )


def open_generator(args: Namespace, folder: str | None) -> Generator:
    """Load the model of a folder, or the one that comes with weft."""
    from weft.generation.generator import Generator

    return Generator(folder, max_length=args.max_length, variant=args.variant, **options.load_arguments(args))


def answer_options(args: Namespace) -> dict[str, Any]:
    """Return the options of answers that the command line sets."""
    values = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    schema = values.get("json_schema")
    if schema is not None and not schema.lstrip().startswith("{"):
        path = Path(schema)
        if not path.is_file():
            raise InputError(f"--json-schema {schema}: no such file", hint="name a file, or write the schema itself")
        values["json_schema"] = path.read_text(encoding="utf-8")
    return values


def check_encoding(text: str) -> None:
    """Raise InputError for arguments or input that are not UTF-8, which Python reads as lone surrogates."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError("the text is not UTF-8", hint="convert it: iconv -f LATIN1 -t UTF-8")


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """Times and counts of one answer."""

    prompt_tokens: int
    answer_tokens: int
    first_seconds: float  # until the first text
    first_tokens: int  # that had been generated then
    seconds: float
    finish_reason: str

    @property
    def prompt_rate(self) -> float:
        """Tokens of the prompt per second until the first text."""
        return self.prompt_tokens / self.first_seconds

    @property
    def answer_rate(self) -> float | None:
        """Tokens per second after the first text; None for a single token."""
        count, seconds = self.answer_tokens - self.first_tokens, self.seconds - self.first_seconds
        return count / seconds if count > 0 and seconds > 0 else None

    def record(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return {
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "time_to_first_token_ms": self.first_seconds * 1e3,
            "prompt_tokens_per_second": self.prompt_rate,
            "answer_tokens_per_second": self.answer_rate,
            "seconds": self.seconds,
        }


class TimedAnswer:
    """The text of an answer, whose pieces are timed. Ctrl-C ends the answer."""

    def __init__(self, stream: AnswerStream) -> None:
        self._stream = stream
        self._start = time.perf_counter()
        self.text = ""
        self.figures: AnswerFigures | None = None
        self.is_interrupted = False

    def read(self, write: Callable[[str], object] = len) -> None:
        """Wait for the end of the answer; `write` gets its pieces as they come."""
        first_seconds, first_tokens = None, 0
        pieces = []
        try:
            for piece in self._stream:
                if first_seconds is None:
                    first_seconds, first_tokens = time.perf_counter() - self._start, len(self._stream.tokens)
                pieces.append(piece)
                write(piece)
        except KeyboardInterrupt:
            self.is_interrupted = True
            self._stream.cancel()
        seconds = time.perf_counter() - self._start
        count = len(self._stream.tokens)
        if first_seconds is None:
            first_seconds, first_tokens = seconds, count
        reason = "cancelled" if self.is_interrupted else self._stream.finish_reason or "stop"
        self.text = "".join(pieces)
        self.figures = AnswerFigures(self._stream.prompt_tokens, count, first_seconds, first_tokens, seconds, reason)


def print_answer(answer: TimedAnswer) -> None:
    """Print the pieces of an answer as they come, and end the line."""
    is_terminal = sys.stdout.isatty()

    def write(piece: str) -> None:
        sys.stdout.write(_escape_controls(piece) if is_terminal else piece)
        sys.stdout.flush()

    answer.read(write)
    if not answer.text.endswith("\n"):
        sys.stdout.write("\n")
    sys.stdout.flush()


def print_figures(answer: TimedAnswer, generator: Generator) -> None:
    """Print speed and memory on one line of stderr, so that stdout has the text alone."""
    figures = answer.figures
    assert figures is not None
    memory = generator.memory()
    rate = "" if figures.answer_rate is None else f" at {figures.answer_rate:,.1f} tokens/s"
    end = "" if figures.finish_reason == "stop" else f" ({figures.finish_reason})"
    sizes = f"{output.format_bytes(memory.weights)} weights, {output.format_bytes(memory.cache)} cache"
    parts = (
        f"prompt {figures.prompt_tokens} tokens at {figures.prompt_rate:,.1f} tokens/s",
        f"answer {figures.answer_tokens} tokens{rate}{end}",
        f"first token after {output.format_seconds(figures.first_seconds)}",
        f"memory {output.format_bytes(memory.peak)} ({sizes})",
    )
    output.error_console().print(" | ".join(parts), style="dim")


def memory_record(generator: Generator) -> dict[str, int]:
    """Return the memory of a generator as JSON data."""
    memory = generator.memory()
    return {"weights": memory.weights, "cache": memory.cache, "step": memory.step, "peak": memory.peak}


def _escape_controls(text: str) -> str:
    """Escape characters that control the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else output.escape_unprintable(c) for c in text)
