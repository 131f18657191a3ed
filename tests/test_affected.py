"""`scripts/test --changed` runs the tests that a change can affect: on a small tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import affected
import pytest
from affected import read_graph

TREE = {
    "pyproject.toml": "",
    "README.md": "",
    "scripts/bench": "",
    "src/weft/__init__.py": "from weft.errors import WeftError\n_LAZY = {'load': 'weft.compiler'}\n",
    "src/weft/__main__.py": "from weft.cli import main\n",
    "src/weft/errors.py": "",
    "src/weft/compiler.py": "import weft.opset\nfrom weft.runtime.devices import choose\n",
    "src/weft/cli/__init__.py": "def main():\n    import_module(f'weft.cli.{command}')\n",
    "src/weft/cli/run.py": "import weft\n",
    "src/weft/cli/output.py": "",
    "src/weft/opset/__init__.py": "FAMILIES = [import_module(f'weft.opset.{name}') for name in MODULES]\n",
    "src/weft/opset/linear.py": "@op('MatMul')\ndef MatMul(): ...\n",
    "src/weft/opset/shapes.py": "@op('Reshape', since=5)\ndef Reshape(): ...\n",
    "src/weft/runtime/devices.py": "def engine():\n    import weft.backends.cpu\n    import weft.backends.webgpu\n",
    "src/weft/backends/cpu/__init__.py": "from weft.kernels import select\nNAMES = ['walk.ll']\n",
    "src/weft/backends/cpu/walk.ll": "",
    "src/weft/backends/webgpu/__init__.py": "from weft.kernels import select\n",
    "src/weft/kernels/__init__.py": "",
    "src/weft/kernels/select.py": "import weft.kernels.vector\nimport weft.kernels.threads\n",
    "src/weft/kernels/vector.py": "",
    "src/weft/kernels/threads.py": "",
    "src/weft/compat/conformance/worker.py": "import weft\n",
    "tests/conftest.py": "ON_REFERENCE = ('opset',)\n",
    "tests/samples.py": "",
    "tests/listed.py": "FILE = 'list.tsv'\n",
    "tests/list.tsv": "",
    "tests/opset/test_linear.py": "import weft\nimport samples\nweft.load(model('MatMul'))\n",
    "tests/opset/test_shapes.py": "import weft\nweft.load(model('Reshape'))\n",
    "tests/test_cpu.py": "import weft\nweft.load(model('MatMul'), device='cpu')\n",
    "tests/test_webgpu.py": "import weft\nweft.load(model('MatMul'), device='webgpu:0')\n",
    "tests/test_anywhere.py": "import weft\nfrom listed import FILE\nweft.load(FILE)\n",
    "tests/test_kernels.py": "from weft.kernels.vector import build\n",
    "tests/test_command.py": "run([sys.executable, '-m', 'weft', 'run'])\n",
    "tests/docs/test_pages.py": "",
    "tests/test_script.py": "run(ROOT / 'scripts' / 'bench')\nPAGE = ROOT / 'docs' / 'kernels.md'\n",
    "tests/test_output.py": "from weft.cli.output import table\n",
}
LOADING = {"opset/test_linear", "opset/test_shapes", "test_anywhere", "test_command", "test_cpu", "test_webgpu"}
ALL_CONFORMANCE = {"conformance cpu", "conformance reference", "conformance webgpu"}
EVERYTHING = LOADING | ALL_CONFORMANCE | {"docs/test_pages", "test_kernels", "test_output", "test_script"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def affected_names(tree: Path, *changed: str) -> set[str]:
    names = affected.affected(read_graph(tree), changed).reasons
    return {name.removeprefix("tests/").removesuffix(".py") for name in names}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("README.md", {"docs/test_pages"}),
        ("docs/guides/shapes.md", {"docs/test_pages"}),
        ("docs/kernels.md", {"docs/test_pages", "test_script"}),
        ("CONTRIBUTING.md", set()),
        ("pyproject.toml", EVERYTHING),
        ("tests/conftest.py", EVERYTHING),
        ("src/weft/errors.py", EVERYTHING - {"docs/test_pages", "test_script"}),
        ("src/weft/compiler.py", LOADING | ALL_CONFORMANCE),
        ("src/weft/opset/linear.py", LOADING - {"opset/test_shapes"} | ALL_CONFORMANCE),
        (
            "src/weft/kernels/vector.py",
            {"test_kernels", "test_cpu", "test_anywhere", "test_command", "conformance cpu"},
        ),
        ("src/weft/kernels/threads.py", {"test_webgpu", "test_anywhere", "test_command", "conformance webgpu"}),
        ("src/weft/backends/cpu/walk.ll", {"test_cpu", "test_anywhere", "test_command", "conformance cpu"}),
        ("src/weft/cli/run.py", {"test_command"}),
        ("src/weft/cli/output.py", {"test_command", "test_output"}),
        ("tests/samples.py", {"opset/test_linear"}),
        ("tests/list.tsv", {"test_anywhere"}),
        ("tests/test_cpu.py", {"test_cpu"}),
        ("scripts/bench", {"test_script"}),
        ("data/unknown.bin", EVERYTHING),
    ],
)
def test_affected_tests_of_a_change(tree: Path, changed: str, expected: set[str]) -> None:
    assert affected_names(tree, changed) == expected


def test_several_changes(tree: Path) -> None:
    assert affected_names(tree, "tests/samples.py", "tests/test_cpu.py") == {"opset/test_linear", "test_cpu"}


def test_changes_come_from_git(tree: Path) -> None:
    """Commits since the base, changes in the working tree, and untracked files."""

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
        subprocess.run(["git", *who, *arguments], cwd=tree, check=True, capture_output=True)

    git("init", "--initial-branch", "main")
    git("add", "-A")
    git("commit", "-m", "first")
    git("checkout", "-b", "work")
    (tree / "tests" / "samples.py").write_text("changed = 1\n")
    git("commit", "-am", "second")
    (tree / "README.md").write_text("changed\n")
    (tree / "tests" / "test_new.py").write_text("")
    command = [sys.executable, affected.__file__, "--root", str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [
        "tests/docs/test_pages.py",
        "tests/opset/test_linear.py",
        "tests/test_new.py",
        "",
    ]
    assert "3 files changed since" in done.stderr
    assert "tests/opset/test_linear.py: samples" in done.stderr
    assert "3 to run, 11 left out" in done.stderr
    unknown = subprocess.run([*command, "no-such-commit"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 1
    assert "no-such-commit" in unknown.stderr
