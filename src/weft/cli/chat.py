"""`weft chat`: talk with a language model in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from weft.cli import options, output, text_options
from weft.errors import WeftError

if TYPE_CHECKING:
    from weft.generation.generator import Generator

PROMPT = "> "
HELP = "/reset forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer"
EXAMPLES = (
    ("with a model of your own", "weft chat folder"),
    ("with a system prompt, on the CPU", 'weft chat folder --system "Answer briefly." --device cpu'),
    ("with the small model that comes with weft", "weft chat"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "chat",
        help="talk with a language model",
        description="Talk with a language model, by its chat template. A model without one continues the text of the "
        "conversation. Ctrl-C stops an answer, and the conversation goes on. Commands: /reset, /help, /exit. Without a "
        "terminal, each line of standard input is a message.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="FOLDER",
        help="a folder of onnxruntime-genai, optimum or transformers.js (default: the model that comes with weft)",
    )
    text_options.add_text_options(parser, None)
    options.add_json(parser, "print each answer, with its speed, as a line of JSON")


def run(args: argparse.Namespace) -> int:
    keywords = text_options.answer_options(args)
    with text_options.open_generator(args, args.folder) as generator, InterruptGate() as gate:
        conversation = Conversation(generator, args.system)
        console = output.error_console()
        if not args.json:
            console.print(f"{generator.folder.name} on {generator.device}. {HELP}", style="dim")
        while (line := read_line(gate, is_quiet=args.json)) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit" | "/quit":
                    break
                case "/help":
                    console.print(HELP, style="dim")
                case "/reset":
                    conversation.reset()
                case text:
                    try:
                        with gate.opened():
                            _answer(args, generator, conversation, text, keywords)
                    except KeyboardInterrupt:  # before or after the text of the answer
                        conversation.drop_message()
                        console.print()
                    except WeftError as error:  # the next message may be shorter
                        conversation.drop_message()
                        console.print(f"error: {error}", style="red")
    return 0


class Conversation:
    """The messages so far, or their text for a model without a chat template."""

    def __init__(self, generator: Generator, system: str | None) -> None:
        self._has_template = bool(generator.tokenizer.chat_templates.sources)
        self._system = system
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forget all messages but the system prompt."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def add(self, role: str, text: str) -> None:
        self.messages.append({"role": role, "content": text})

    def drop_message(self) -> None:
        """Forget a message that has no answer."""
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()

    def prompt(self) -> Any:
        """Return what to pass to a generator."""
        return self.messages if self._has_template else "\n".join(each["content"] for each in self.messages)


class InterruptGate:
    """Let Ctrl-C raise KeyboardInterrupt once in each block that opens the gate, and nowhere else.

    Without it, a second Ctrl-C would end the program while it handles the first.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._previous: Any = None

    def __enter__(self) -> InterruptGate:
        if threading.current_thread() is threading.main_thread():  # only it can set handlers
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Open the gate until the end of the block, or the first Ctrl-C."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_open:
            self._is_open = False
            raise KeyboardInterrupt


def read_line(gate: InterruptGate, *, is_quiet: bool) -> str | None:
    """Read a message; None at the end of input. Ctrl-C gives an empty one."""
    if not sys.stdin.isatty():
        with gate.opened():
            return sys.stdin.readline() or None
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - lines can be edited
    try:
        with gate.opened():
            return input("" if is_quiet else PROMPT)
    except EOFError:
        sys.stdout.write("\n")
        return None
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        return ""


def _answer(
    args: argparse.Namespace,
    generator: Generator,
    conversation: Conversation,
    text: str,
    keywords: dict[str, Any],
) -> None:
    text_options.check_encoding(text)
    conversation.add("user", text)
    answer = text_options.TimedAnswer(generator.stream(conversation.prompt(), **keywords))
    if args.json:
        answer.read()
        assert answer.figures is not None
        print(json.dumps({"text": answer.text, **output.plain_data(answer.figures.record())}), flush=True)
    else:
        text_options.print_answer(answer)
        text_options.print_figures(answer, generator)
    conversation.add("assistant", answer.text)
