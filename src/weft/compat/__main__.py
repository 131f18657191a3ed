"""Run a program with weft in place of onnxruntime: `python -m weft.compat script.py args`, or `-m module args`."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import ModuleType

from weft.compat.installation import REPLACED, VARIABLE, install

USAGE = "usage: python -m weft.compat [-m module | -c code | script.py | -] [arguments ...]"


def main() -> None:
    match sys.argv[1:]:
        case ["-m", module, *rest]:
            _prepare([module, *rest], os.getcwd())  # noqa: PTH109 - as Python writes it
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *rest]:
            _prepare(["-c", *rest], "")
            _execute(code, "<string>", None)
        case ["-", *rest]:
            _prepare(["-", *rest], "")
            _execute(sys.stdin.read(), "<stdin>", None)
        case [script, *rest] if not script.startswith("-"):
            _run_script(script, rest)
        case ["-h" | "--help"]:
            print(USAGE)
        case _:
            sys.exit(USAGE)


def _run_script(script: str, rest: list[str]) -> None:
    path = Path(script)
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        _prepare([script, *rest], None)
        runpy.run_path(script, run_name="__main__")
        return
    try:
        code = path.read_bytes()
    except OSError as error:
        sys.exit(f"python -m weft.compat: can't open file {script!r}: {error.strerror}")
    _prepare([script, *rest], str(path.resolve().parent))
    _execute(code, script, script)


def _prepare(arguments: list[str], folder: str | None) -> None:
    """What Python sets up for a program; processes that it starts get weft as well."""
    install()
    os.environ[VARIABLE] = REPLACED
    sys.argv[:] = arguments
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)  # what `-m weft.compat` put there
        if folder is not None:
            sys.path.insert(0, folder)


def _execute(code: bytes | str, name: str, file: str | None) -> None:
    """Run source as the process's main module."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    if file is not None:
        module.__file__ = file
    sys.modules["__main__"] = module
    exec(compile(code, name, "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    main()
