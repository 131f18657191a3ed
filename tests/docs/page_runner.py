"""Run the blocks of one page, in order, in this process: `python -m docs.page_runner PAGE FOLDER RESULTS`.

README.md says which blocks run. RESULTS is JSON with the line of each block, its error (`wrong`, or null), and the
reason why it did not run (`left_out`, or null).
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import json
import os
import re
import subprocess
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docs.blocks import Block, BlockError

from docs import blocks, checks, loose_comparison

SECONDS = 120


class Page:
    """A page during its run: its namespace, and the output of the last block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.module = types.ModuleType("__main__")
        self.printed = ""
        sys.modules["__main__"] = self.module

    def run(self, block: Block) -> str | None:
        """Run a block; return the reason if it does not run."""
        if unknown := [text for text in block.comments if not text.startswith(blocks.DIRECTIVES)]:
            raise BlockError(f"the comment above it says {unknown[0]!r}; it may begin with {blocks.DIRECTIVES}")
        if block.language not in blocks.LANGUAGES:
            raise BlockError(f"its language is {block.language!r}; name one of {', '.join(blocks.LANGUAGES)}")
        if block.find_directive(blocks.SHOWN) is not None:
            return None
        reason = block.find_directive(blocks.NOT_RUN)
        if reason is None and (missing := [need for need in block.needs if not checks.is_available(need)]):
            reason = f"needs {', '.join(missing)}"
        if reason is not None:
            checks.check(block)
            return reason or "no reason is given"
        if block.title is not None:
            checks.check(block)
            path = Path(block.title)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code, encoding="utf-8")
            return None
        match block.language:
            case "python":
                self.printed = self._run_expecting(block, lambda: self._execute(block))
            case "pycon":
                self._run_conversation(block)
            case "sh":
                self.printed = _run_commands(block)
            case "console":
                _run_console(block)
            case "text" if block.is_output:
                if misfit := loose_comparison.find_missing_line(block.code, self.printed):
                    raise BlockError(f"{misfit!r} is missing in the output of the block before:\n{self.printed}")
            case language if language in blocks.DATA:
                checks.check(block)
            case language if language in blocks.FILES:
                raise BlockError(f'give it title="file", or say above: <!-- {blocks.NOT_RUN} reason -->')
        return None

    def _execute(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.code
        code = compile(source, str(self.path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, self.module.__dict__))
        else:
            exec(code, self.module.__dict__)

    def _run_expecting(self, block: Block, run: Callable[[], None]) -> str:
        """Run a block and return its output, with the expected exception at the end, if any."""
        expected = block.find_directive(blocks.RAISES)
        with capture_output() as printed:
            try:
                run()
            except BaseException as error:
                names = {kind.__name__ for kind in type(error).__mro__}
                if expected is None or expected.rpartition(".")[2] not in names:
                    raise
                print(f"{type(error).__name__}: {error}")
                return printed.getvalue()
        if expected is not None:
            raise BlockError(f"raises no {expected}")
        return printed.getvalue()

    def _run_conversation(self, block: Block) -> None:
        for example in doctest.DocTestParser().get_examples(block.code):
            raised = None
            with capture_output() as printed:
                try:
                    exec(compile(example.source, str(self.path), "single"), self.module.__dict__)
                except Exception as error:
                    raised = error
                    print(f"{type(error).__name__}: {error}")
            output = printed.getvalue()
            expected = example.want.replace("Traceback (most recent call last):\n", "")
            if raised is not None and f"{type(raised).__name__}" not in expected:
                raise raised
            if misfit := loose_comparison.find_missing_line(expected, output):
                raise BlockError(f"{misfit!r} is not what {example.source.strip()!r} shows:\n{output}")


def _run_commands(block: Block) -> str:
    lines = checks.command_lines(block.code)
    exit_code = int(block.find_directive(blocks.EXIT) or 0)
    if not all(map(checks.is_standalone, lines)):
        return _bash(block.code, exit_code)
    return "".join(_run_line(line, exit_code if line == lines[-1] else 0) for line in lines)


def _run_console(block: Block) -> None:
    exit_code = int(block.find_directive(blocks.EXIT) or 0)
    dialogue = checks.parse_dialogue(block.code)
    for place, (command, expected) in enumerate(dialogue):
        printed = _run_line(command, exit_code if place == len(dialogue) - 1 else 0)
        if block.find_directive(blocks.OTHER_OUTPUT) is None and (
            misfit := loose_comparison.find_missing_line(expected, printed)
        ):
            raise BlockError(f"{misfit!r} is not what {command!r} prints:\n{printed}")


def _run_line(line: str, exit_code: int) -> str:
    words = checks.parse_weft_command(line)
    if words is None:
        return _bash(line, exit_code)
    from weft.cli import main

    with capture_output() as printed:
        code = main(words)
    if code != exit_code:
        raise BlockError(f"{line!r} exits with {code}, not with {exit_code}:\n{printed.getvalue()}")
    return printed.getvalue()


def _bash(code: str, exit_code: int) -> str:
    process = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=SECONDS,
    )
    if process.returncode != exit_code:
        raise BlockError(f"bash exits with {process.returncode}, not with {exit_code}:\n{process.stdout}")
    return process.stdout


@contextlib.contextmanager
def capture_output() -> Any:
    """Capture both standard streams."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield text


def main() -> None:
    page, folder, results = (Path(argument).absolute() for argument in sys.argv[1:])
    path = os.environ["PATH"]
    os.chdir(folder)
    running = Page(page)
    outcomes: list[dict[str, Any]] = []
    for block in blocks.parse_blocks(page.read_text(encoding="utf-8")):
        wrong, left_out = None, None
        try:
            left_out = running.run(block)
        except BlockError as error:
            wrong = str(error)
        except BaseException:
            wrong = traceback.format_exc()
        finally:
            os.chdir(folder)
            os.environ["PATH"] = path
        outcomes.append({"line": block.line, "wrong": wrong, "left_out": left_out})
        results.write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    sys.argv = [re.sub(r"\s+", " ", argument) for argument in sys.argv]
    main()
