"""Run a program with weft in place of onnxruntime and onnxruntime_genai.

`python -m weft.compat script.py args`, or `-m module args`.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import ModuleType

from weft.compat.installation import PACKAGES, VARIABLE, install

USAGE = "usage: python -m weft.compat [-m module | -c code | script.py | -] [arguments ...]"


def main() -> None:
    match sys.argv[1:]:
        case ["-m", module, *arguments]:
            _prepare([module, *arguments], os.getcwd())  # noqa: PTH109 - as Python writes it
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *arguments]:
            _prepare(["-c", *arguments], "")
            _execute(code, "<string>", None)
        case ["-", *arguments]:
            _prepare(["-", *arguments], "")
            _execute(sys.stdin.read(), "<stdin>", None)
        case [script, *arguments] if not script.startswith("-"):
            _run_script(script, arguments)
        case ["-h" | "--help"]:
            print(USAGE)
        case _:
            sys.exit(USAGE)


def _run_script(script: str, arguments: list[str]) -> None:
    path = Path(script)
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        _prepare([script, *arguments], None)
        runpy.run_path(script, run_name="__main__")
        return
    try:
        code = path.read_bytes()
    except OSError as error:
        sys.exit(f"python -m weft.compat: can't open file {script!r}: {error.strerror}")
    _prepare([script, *arguments], str(path.resolve().parent))
    _execute(code, script, script)


def _prepare(argv: list[str], folder: str | None) -> None:
    """Install the drop-ins, here and for child processes, and set `sys.argv` and `sys.path` as Python does."""
    install(*PACKAGES)
    os.environ[VARIABLE] = ",".join(PACKAGES)
    sys.argv[:] = argv
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)  # the entry that `-m weft.compat` added
        if folder is not None:
            sys.path.insert(0, folder)


def _execute(code: bytes | str, name: str, file: str | None) -> None:
    """Run source code as the main module of the process."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    if file is not None:
        module.__file__ = file
    sys.modules["__main__"] = module  # as Python does for a program
    exec(compile(code, name, "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    main()
