"""`weft generate` and `weft chat`, with the model that comes with weft."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import weft
from weft.cli import main
from weft.cli.chat import Conversation
from weft.cli.generate import split_words
from weft.cli.text_options import TimedAnswer
from weft.generation.generator import DEMO_MODEL, Generator

pytest.importorskip("tokenizers")
PROMPT = "The functions of"


@pytest.fixture(scope="module")
def expected() -> str:
    with Generator() as generator:
        return str(generator(PROMPT, max_new_tokens=12, temperature=0))


def test_text_on_stdout_and_figures_on_stderr(expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", PROMPT, "--max-new-tokens", "12", "--temperature", "0"]) == 0
    printed = capsys.readouterr()
    assert printed.out == expected + "\n"
    for word in ("prompt", "answer 12 tokens", "first token after", "memory", "length"):
        assert word in printed.err
    assert printed.err.count("\n") == 1


def test_json(expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(DEMO_MODEL), PROMPT, "--max-new-tokens", "12", "--temperature", "0", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["text"] == expected
    assert record["answer_tokens"] == 12
    assert record["finish_reason"] == "length"
    assert record["memory_bytes"]["peak"] > record["memory_bytes"]["weights"] > 0
    assert record["time_to_first_token_ms"] > 0


def test_prompt_from_stdin(expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["-"], [str(DEMO_MODEL)], [str(DEMO_MODEL), "-"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
        assert main(["generate", *arguments, "--max-new-tokens", "12", "--temperature", "0"]) == 0
        assert capsys.readouterr().out == expected + "\n"


def test_options_reach_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", PROMPT, "--max-new-tokens", "20", "--temperature", "1.5", "--top-p", "0.95", "--top-k", "40"]
    texts = []
    for seed in ("7", "7", "8"):
        assert main([*command, "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert main(["generate", PROMPT, "--temperature", "0", "--stop", "module", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["finish_reason"] == "stop"
    assert "module" not in record["text"]


def test_json_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    schema = '{"type": "object", "properties": {"count": {"type": "integer", "maximum": 99}}, "required": ["count"]}'
    (tmp_path / "schema.json").write_text(schema)
    for source in (schema, str(tmp_path / "schema.json")):
        assert main(["generate", PROMPT, "--json-schema", source, "--temperature", "0"]) == 0
        assert isinstance(json.loads(capsys.readouterr().out)["count"], int)
    assert main(["generate", PROMPT, "--json-schema", "missing.json"]) == 1
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "there is no prompt"),
        (["a", "b", "c"], "put the prompt in quotes"),
        (["no such folder", "b"], "does not exist"),
        (["a", "--max-length", "100000"], "context"),
        (["a", "--top-p", "3"], "top_p"),
        (["\udcff"], "not UTF-8"),
        (["a", "--system", "\udcff"], "not UTF-8"),
    ],
)
def test_wrong_arguments(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *arguments]) == 1
    assert problem in capsys.readouterr().err


def test_one_word_is_a_folder_if_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert split_words([str(DEMO_MODEL)]) == (str(DEMO_MODEL), "-")
    assert split_words(["Once"]) == (None, "Once")
    assert split_words(["x" * 10_000]) == (None, "x" * 10_000)
    assert split_words(["a\0b"]) == (None, "a\0b")


def test_chat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def talk(*lines: str) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
        assert main(["chat", "--json", "--temperature", "0", "--max-new-tokens", "8"]) == 0
        return [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]

    (first,) = talk(PROMPT)
    both = talk(PROMPT, "The file")
    again = talk(PROMPT, "/reset", "", "/help", PROMPT, "/exit", "The file")
    assert both[0] == first
    assert again == [first, first]
    too_long = talk("word " * 2000, PROMPT)
    assert too_long == [first]
    assert talk("\udcff", PROMPT) == [first]


def test_interrupted_messages_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts: list[list[dict[str, str]]] = []
    stream = Generator.stream

    def interrupt_first(generator: Generator, prompt: list[dict[str, str]], **options: object) -> object:
        prompts.append([*prompt])
        if len(prompts) == 1:
            raise KeyboardInterrupt
        return stream(generator, prompt, **options)

    monkeypatch.setattr(Generator, "stream", interrupt_first)
    monkeypatch.setattr(sys, "stdin", io.StringIO("The first\nThe second"))
    assert main(["chat", "--json", "--temperature", "0", "--max-new-tokens", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert [[message["content"] for message in messages] for messages in prompts] == [["The first"], ["The second"]]


def test_ctrl_c_ends_the_answer() -> None:
    command = ["generate", PROMPT, "--max-new-tokens", "480", "--temperature", "3", "--seed", "1"]
    process = _start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    begin = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, figures = process.communicate(timeout=60)
    assert process.returncode == 130, figures
    assert b"Traceback" not in figures
    assert begin + rest
    assert b"cancelled" in figures


def test_ctrl_c_stops_an_answer_and_not_the_chat() -> None:
    terminal, side = pty.openpty()
    command = ["chat", "--temperature", "3", "--seed", "1"]
    process = _start(command, stdin=side, stdout=side, stderr=side, start_new_session=True)
    os.close(side)
    prompt = b"\r\n> "  # an answer can contain "> "
    try:
        _read_until(terminal, prompt)
        os.write(terminal, b"The\n")
        _read_until(terminal, b"The\r\n")
        _read_until(terminal, b"")
        text = _interrupt_until(process, terminal, prompt)
        assert b"Traceback" not in text
        _interrupt_until(process, terminal, prompt)  # without an answer
        assert _exit(process, terminal) == 0
    finally:
        process.kill()
        os.close(terminal)


def test_a_second_ctrl_c_does_not_end_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read, drop = TimedAnswer.read, Conversation.drop_message

    def read_interrupted(answer: TimedAnswer) -> None:
        signal.raise_signal(signal.SIGINT)  # the first raises KeyboardInterrupt
        read(answer)

    def drop_interrupted(conversation: Conversation) -> None:
        signal.raise_signal(signal.SIGINT)
        drop(conversation)
        monkeypatch.setattr(TimedAnswer, "read", read)

    monkeypatch.setattr(TimedAnswer, "read", read_interrupted)
    monkeypatch.setattr(Conversation, "drop_message", drop_interrupted)
    monkeypatch.setattr(sys, "stdin", io.StringIO("The first\nThe second"))
    before = signal.getsignal(signal.SIGINT)
    assert main(["chat", "--json", "--temperature", "0", "--max-new-tokens", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert signal.getsignal(signal.SIGINT) is before


def _start(arguments: list[str], **options: object) -> subprocess.Popen[bytes]:
    source = str(Path(weft.__file__).parents[1])
    command = [sys.executable, "-m", "weft", *arguments]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": source, "TERM": "dumb"}, **options)  # type: ignore[call-overload, no-any-return]


def _interrupt_until(process: subprocess.Popen[bytes], terminal: int, end: bytes) -> bytes:
    """Press Ctrl-C until a terminal shows a text: Python loses a signal that comes just before readline waits."""
    shown = b""
    for _ in range(60):
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 4096)
                if end in shown:
                    return shown
    raise AssertionError(f"not shown: {end!r} in {shown!r}")


def _exit(process: subprocess.Popen[bytes], terminal: int) -> int:
    """Enter /exit until the chat ends: an interrupt that is still to come discards the line."""
    for _ in range(60):
        os.write(terminal, b"\n/exit\n")
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            if process.poll() is not None:
                return process.returncode
            if select.select([terminal], [], [], 0.1)[0]:  # a full terminal blocks the chat
                with contextlib.suppress(OSError):  # the chat has closed it
                    os.read(terminal, 4096)
    raise AssertionError("the chat goes on after /exit")


def _read_until(descriptor: int, end: bytes) -> bytes:
    """Read what a terminal shows, up to a text; an empty text waits for anything."""
    shown = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([descriptor], [], [], 1)[0]:
            shown += os.read(descriptor, 4096)
            if end in shown:
                return shown
    raise AssertionError(f"not shown: {end!r} in {shown!r}")
