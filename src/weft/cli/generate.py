"""`weft generate`: continue a text with a language model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from weft.cli import options, output, text_options
from weft.errors import InputError

INTERRUPTED = 130
MAX_NEW_TOKENS = 256
EXAMPLES = (
    ("with the small model that comes with weft", 'weft generate "Once upon a time"'),
    ("with a model of your own", 'weft generate folder "Once upon a time" --max-new-tokens 100'),
    ("an answer in JSON to the text of a file", "weft generate folder - --json-schema schema.json < prompt.txt"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "generate",
        help="continue a text with a language model",
        description="Continue a text with a language model, piece by piece. With one argument, an existing path is the "
        "folder of a model, and its prompt is read from standard input; any other text is a prompt for the small model "
        "that comes with weft. Ctrl-C ends the answer. Speed and memory are printed to standard error.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="FOLDER PROMPT",
        help="a folder of onnxruntime-genai, optimum or transformers.js (default: the model that comes with weft), and "
        "the text to continue, or - for standard input",
    )
    parser.set_defaults(late_files="words")
    text_options.add_text_options(parser, MAX_NEW_TOKENS)
    options.add_json(parser, "print the answer, speed and memory as JSON")


def run(args: argparse.Namespace) -> int:
    folder, prompt = split_words(args.words)
    if prompt == "-":
        prompt = sys.stdin.read()
    if not prompt:
        raise InputError("there is no prompt", hint='weft generate FOLDER "prompt", or - to read standard input')
    text_options.check_encoding(prompt + (args.system or ""))
    keywords = text_options.answer_options(args)
    with text_options.open_generator(args, folder) as generator:
        messages = None
        if args.system is not None:
            messages = [{"role": "system", "content": args.system}, {"role": "user", "content": prompt}]
        answer = text_options.TimedAnswer(generator.stream(messages or prompt, **keywords))
        if args.json:
            answer.read()
            assert answer.figures is not None
            record = {"text": answer.text, "model": generator.folder.name, "device": generator.device}
            output.print_json(
                record | answer.figures.record() | {"memory_bytes": text_options.memory_record(generator)}
            )
        else:
            text_options.print_answer(answer)
            text_options.print_figures(answer, generator)
    return INTERRUPTED if answer.is_interrupted else 0


def split_words(words: list[str]) -> tuple[str | None, str]:
    """Return folder and prompt. A single word is a folder if it exists, whose prompt is standard input."""
    if len(words) > 2:
        hint = "put the prompt in quotes"
        raise InputError(f"there are {len(words)} arguments, and two are needed: a folder and a prompt", hint=hint)
    if len(words) == 2:
        return words[0], words[1]
    if len(words) == 1 and words[0] != "-" and _exists(words[0]):
        return words[0], "-" if not sys.stdin.isatty() else ""
    return None, words[0] if words else ""


def _exists(word: str) -> bool:
    try:
        return Path(word).exists()
    except (OSError, ValueError):  # a prompt can be too long for a path
        return False
