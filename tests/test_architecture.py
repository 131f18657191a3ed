"""The rules of ARCHITECTURE.md that a machine can check."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import onnx.defs
import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "weft"
FILES = sorted(SOURCE.rglob("*.py"))
TESTS = ROOT / "tests"
TEST_FILES = sorted(TESTS.rglob("*.py"))

MOST_LINES = 700
DEVICE_NAMES = frozenset({"cpu", "cuda", "llvm", "reference", "vulkan", "webgpu"})
MAY_NAME_OPS = ("opset/", "optimization/", "quantization/")
MAY_NAME_DEVICES = ("backends/", "runtime/devices.py", "cli/", "compat/onnxruntime/", "compat/onnxruntime_genai/")
MAY_IMPORT_ONNX = ("frontend/", "compat/", "backend.py")
ALLOWED_LITERALS: dict[tuple[str, str], str] = {
    ("threads.py", "cpu"): "the name of a controller of Linux's control groups"
}
"""(file, literal) -> why it cannot be avoided there."""

TESTS_OF_THEIR_OWN = (
    "attack", "converters", "docs", "examples", "notebooks", "packages", "suites", "terminal",
)  # folders  # fmt: skip

CLOCK = re.compile(
    r"\btime\.(monotonic|perf_counter|process_time|thread_time|time|clock_gettime)(_ns)?\(|\bfrom time import\b"
    r"|\bos\.times\(|\bgetrusage\(|\btimeit\."
)
MAY_READ_A_CLOCK = {
    "attack/campaign.py": "runs for a time that the caller sets",
    "attack/engine.py": "a watchdog of minutes",
    "attack/minimise.py": "runs for a time that the caller sets",
    "attack/scenarios.py": "a watchdog of minutes; runs that the end of their process meets",
    "attack/sweep.py": "runs for a time that the caller sets",
    "backends/cpu/test_tape.py": "the clock that launches are noted by is the system's",
    "cache/test_code.py": "files with dates in the past",
    "cache/test_model_cache.py": "files with dates in the past",
    "cli/test_cache.py": "files with dates in the past",
    "cli/test_completion.py": "a watchdog of a minute",
    "cli/test_generate.py": "a watchdog of a minute",
    "fast.py": "measures tests for the list of long ones",
    "generation/test_generator.py": "a watchdog of a minute",
    "foreign_device/acme_card.py": "a device's clock, by which launches are noted",
    "models/further.py": "a measurement that people start; no test does",
    "report/browser.py": "a watchdog of minutes",
    "server/soak.py": "runs for a time that the caller sets",
    "waiting.py": "a watchdog of a minute",
}
"""No test asserts a time: on a busy machine it would fail, and teach people to ignore it. A test counts what takes the
time (counting.py: lines of Python that run; launches, compilations, files), and `weft bench` measures it. Watchdogs
against hangs are minutes long."""
SHORTEST_WATCHDOG = 60  # seconds
MAY_HAVE_NO_PATIENCE = {
    "compat/test_conformance.py": "of a worker that hangs on purpose",
    "generation/test_generator.py": "of an answer that is longer on purpose",
    "runtime/test_interrupts.py": "of runs that are to be ended",
    "server/grpc/test_calls.py": "of calls that are to be ended",
    "server/test_batching.py": "of requests that are to be ended",
}


def test_imports_follow_the_layers() -> None:
    """In its own process, since import-linter disables existing loggers."""
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_op_names_appear_only_in_opset() -> None:
    op_names = {schema.name for schema in onnx.defs.get_all_schemas_with_history()}
    assert _strangers(op_names, MAY_NAME_OPS) == []


def test_device_names_appear_only_in_devices() -> None:
    assert _strangers(DEVICE_NAMES, MAY_NAME_DEVICES) == []


def test_onnx_is_imported_only_at_the_edges() -> None:
    strangers = [
        f"{_relative(path)}:{line}: {module}"
        for path in FILES
        if not _relative(path).startswith(MAY_IMPORT_ONNX)
        for module, line in _imported(_tree(path))
        if module.split(".")[0] in ("onnx", "onnxruntime")
    ]
    assert strangers == []


def test_no_test_asserts_a_time() -> None:
    readers = {path.relative_to(TESTS).as_posix() for path in TEST_FILES if CLOCK.search(path.read_text("utf-8"))}
    assert readers == set(MAY_READ_A_CLOCK), "count what takes the time, and measure it in `weft bench`"


def test_timeouts_are_long() -> None:
    short = {
        path.relative_to(TESTS).as_posix()
        for path in TEST_FILES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call)
        for seconds in _patience(node)
        if seconds < SHORTEST_WATCHDOG
    }
    assert short == set(MAY_HAVE_NO_PATIENCE)


def test_folders_of_tests_mirror_the_source() -> None:
    """Tests are in the folder of their subject; models, attacks and suites have their own folders."""
    folders = {path.parent.relative_to(TESTS) for path in TEST_FILES if path.name.startswith("test_")}
    strangers = [folder.as_posix() for folder in folders if not (SOURCE / folder).is_dir()]
    assert sorted(strangers) == sorted(TESTS_OF_THEIR_OWN)


def test_exceptions_are_still_needed() -> None:
    unused = {
        (file, literal)
        for file, literal in ALLOWED_LITERALS
        if literal not in {text for text, _ in _literals(_tree(SOURCE / file))}
    }
    assert unused == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_file_is_one_described_idea(path: Path) -> None:
    assert ast.get_docstring(_tree(path)), "a module's docstring says what comes in, what goes out and what holds"
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES, f"{lines} lines are more than one idea: split it"


def _strangers(words: set[str] | frozenset[str], homes: tuple[str, ...]) -> list[str]:
    """List the string literals outside of `homes` that are one of `words`."""
    return [
        f"{_relative(path)}:{line}: {text!r}"
        for path in FILES
        if not _relative(path).startswith(homes)
        for text, line in _literals(_tree(path))
        if text in words and (_relative(path), text) not in ALLOWED_LITERALS
    ]


def _literals(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield string literals with their lines, except for docstrings."""
    documentation = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            yield node.value, node.lineno


def _imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno


def _patience(node: ast.Call) -> Iterator[float]:
    """Return the literal timeout of a call, in seconds."""
    for keyword in node.keywords:
        match keyword:
            case ast.keyword(arg="timeout", value=ast.Constant(value=int() | float() as seconds)):
                yield seconds
    match node:
        case ast.Call(func=ast.Attribute(attr="timeout"), args=[ast.Constant(value=int() | float() as seconds)]):
            yield seconds


def _relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
