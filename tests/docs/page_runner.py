"""Run the blocks of one page, in order, in this process: `python -m docs.page_runner PAGE FOLDER RESULTS`.

README.md says what counts as a block that runs. What happened goes into RESULTS as JSON: for each block that could have
run its line, what is wrong with it (or null), and why it was left out (or null).
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

from docs import blocks, checks, loosely

SECONDS = 120


class Page:
    """A page that is being run: its namespace, and what the last block printed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.module = types.ModuleType("__main__")
        self.printed = ""
        sys.modules["__main__"] = self.module

    def run(self, block: Block) -> str | None:
        """Run a block; why it was left out, if it was."""
        if unknown := [text for text in block.comments if not text.startswith(blocks.DIRECTIVES)]:
            raise BlockError(f"the comment above it says {unknown[0]!r}; it may begin with {blocks.DIRECTIVES}")
        if block.language not in blocks.LANGUAGES:
            raise BlockError(f"its language is {block.language!r}; name one of {', '.join(blocks.LANGUAGES)}")
        if block.said(blocks.SHOWN) is not None:
            return None
        reason = block.said(blocks.NOT_RUN)
        if reason is None and (lacking := [need for need in block.needs if not checks.is_here(need)]):
            reason = f"needs {', '.join(lacking)}"
        if reason is not None:
            checks.check(block)
            return reason or "no reason is given"
        if block.title is not None:
            checks.check(block)
            place = Path(block.title)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(block.code, encoding="utf-8")
            return None
        match block.language:
            case "python":
                self.printed = self._expecting(block, lambda: self._execute(block))
            case "pycon":
                self._conversation(block)
            case "sh":
                self.printed = _commands(block)
            case "console":
                _console(block)
            case "text" if block.is_output:
                if misfit := loosely.missing(block.code, self.printed):
                    raise BlockError(f"{misfit!r} is not what the block before printed:\n{self.printed}")
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

    def _expecting(self, block: Block, run: Callable[[], None]) -> str:
        """What a block prints, with its exception at the end, where one is expected."""
        expected = block.said(blocks.RAISES)
        with captured() as printed:
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

    def _conversation(self, block: Block) -> None:
        for example in doctest.DocTestParser().get_examples(block.code):
            raised = None
            with captured() as printed:
                try:
                    exec(compile(example.source, str(self.path), "single"), self.module.__dict__)
                except Exception as error:
                    raised = error
                    print(f"{type(error).__name__}: {error}")
            got = printed.getvalue()
            expected = example.want.replace("Traceback (most recent call last):\n", "")
            if raised is not None and f"{type(raised).__name__}" not in expected:
                raise raised
            if misfit := loosely.missing(expected, got):
                raise BlockError(f"{misfit!r} is not what {example.source.strip()!r} shows:\n{got}")


def _commands(block: Block) -> str:
    lines = checks.command_lines(block.code)
    wanted = int(block.said(blocks.EXIT) or 0)
    if not all(map(checks.stands_alone, lines)):
        return _bash(block.code, wanted)
    return "".join(_run_line(line, wanted if line == lines[-1] else 0) for line in lines)


def _console(block: Block) -> None:
    wanted = int(block.said(blocks.EXIT) or 0)
    dialogue = checks.dialogue(block.code)
    for place, (command, expected) in enumerate(dialogue):
        printed = _run_line(command, wanted if place == len(dialogue) - 1 else 0)
        if block.said(blocks.OTHER_OUTPUT) is None and (misfit := loosely.missing(expected, printed)):
            raise BlockError(f"{misfit!r} is not what {command!r} prints:\n{printed}")


def _run_line(line: str, wanted: int) -> str:
    words = checks.words_of_weft(line)
    if words is None:
        return _bash(line, wanted)
    from weft.cli import main

    with captured() as printed:
        code = main(words)
    if code != wanted:
        raise BlockError(f"{line!r} exits with {code}, not with {wanted}:\n{printed.getvalue()}")
    return printed.getvalue()


def _bash(code: str, wanted: int) -> str:
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode != wanted:
        raise BlockError(f"bash exits with {done.returncode}, not with {wanted}:\n{done.stdout}")
    return done.stdout


@contextlib.contextmanager
def captured() -> Any:
    """What is printed, to either stream."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield text


def main() -> None:
    page, folder, results = (Path(argument).absolute() for argument in sys.argv[1:])
    path = os.environ["PATH"]
    os.chdir(folder)
    running = Page(page)
    found: list[dict[str, Any]] = []
    for block in blocks.blocks(page.read_text(encoding="utf-8")):
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
        found.append({"line": block.line, "wrong": wrong, "left_out": left_out})
        results.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    sys.argv = [re.sub(r"\s+", " ", argument) for argument in sys.argv]
    main()
