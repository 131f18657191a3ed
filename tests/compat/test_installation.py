"""`import onnxruntime` returns weft: in this process, in programs and in their child processes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from weft import compat
from weft.compat.installation import API_LEVEL, install_from_environment
from weft.compat.onnxruntime.contender import OnnxruntimeContender
from weft.errors import InputError

SOURCE = Path(__file__).parents[2] / "src"
OURS = str(SOURCE / "weft" / "compat" / "onnxruntime" / "__init__.py")
BOTH = "onnxruntime,onnxruntime_genai"
HOOK = SOURCE / "weft_compat.pth"


@pytest.fixture
def installed() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()
    assert not compat.is_installed()


def _start_python(*arguments: str, input: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, input=input, capture_output=True, text=True, timeout=120, check=False
    )


def _run_python(*arguments: str, **variables: str) -> str:
    """Return what a process prints."""
    process = _start_python(*arguments, **variables)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_install_and_uninstall() -> None:
    before = sys.modules.get("onnxruntime")
    compat.install()
    compat.install()
    try:
        import onnxruntime

        assert onnxruntime.__file__ == OURS
        assert onnxruntime.__name__ == "onnxruntime"
        for name in ("onnxruntime", "onnxruntime.capi", "onnxruntime.capi.onnxruntime_pybind11_state"):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            assert Path(spec.origin).is_file()
        assert sum(type(finder).__name__ == "OnnxruntimeFinder" for finder in sys.meta_path) == 1
    finally:
        compat.uninstall()
    assert not compat.is_installed()
    assert sys.modules.get("onnxruntime") is before
    compat.uninstall()


@pytest.mark.usefixtures("installed")
def test_all_imports_return_the_same_classes() -> None:
    import onnxruntime
    from onnxruntime.capi import _pybind_state, onnxruntime_pybind11_state
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

    import weft.compat.onnxruntime as drop_in

    assert onnxruntime.InferenceSession is InferenceSession is drop_in.InferenceSession
    assert _pybind_state.InvalidArgument is onnxruntime_pybind11_state.InvalidArgument
    assert drop_in.capi.onnxruntime_pybind11_state.Fail is onnxruntime_pybind11_state.Fail


@pytest.mark.usefixtures("installed")
def test_missing_names_are_import_errors() -> None:
    with pytest.raises(ImportError):
        importlib.import_module("onnxruntime.no_such_module")
    with pytest.raises(ImportError):
        exec("from onnxruntime import no_such_name")
    assert importlib.util.find_spec("onnxruntime.session") is None


def test_metadata_where_only_weft_is_installed(tmp_path: Path) -> None:
    site_packages = Path(numpy.__file__).parents[1]
    for package in site_packages.iterdir():
        if not package.name.startswith("onnxruntime"):
            (tmp_path / package.name).symlink_to(package)
    program = (
        f"import sys; sys.path[sys.path.index({str(site_packages)!r})] = {str(tmp_path)!r}\n"
        "import weft.compat; weft.compat.install()\n"
        "import importlib.metadata as metadata, importlib.util as util\n"
        "print(metadata.version('onnxruntime'), metadata.distribution('onnxruntime').metadata['Name'])\n"
        "print(util.find_spec('onnxruntime').name, util.find_spec('onnxruntime.quantization'))\n"
        "print('onnxruntime' in [each.metadata['Name'] for each in metadata.distributions()])\n"
        "try: metadata.version('onnxruntime-gpu')\n"
        "except metadata.PackageNotFoundError: print('no other')\n"
        "from onnxruntime.backend import backend, prepare; print(prepare.__self__ is backend.OnnxRuntimeBackend)\n"
        "from onnxruntime.capi import _pybind_state as inner\n"
        "try: inner.quantize_matmul_4bits(1)\n"
        "except inner.NotImplemented as error: print('quantize_matmul_4bits' in str(error))\n"
    )
    lines = _run_python("-c", program).splitlines()
    assert lines == [f"{API_LEVEL} onnxruntime", "onnxruntime None", "True", "no other", "True", "True"]


@pytest.mark.usefixtures("installed")
def test_metadata_where_onnxruntime_is_installed() -> None:
    real = [each for each in importlib.metadata.distributions() if each.metadata["Name"] == "onnxruntime"]
    assert len(real) == 1


def test_install_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_COMPAT", "tensorflow")
    with pytest.warns(UserWarning, match="weft replaces only onnxruntime"):
        install_from_environment()
    assert not compat.is_installed()
    monkeypatch.setenv("WEFT_COMPAT", "onnxruntime, ")
    install_from_environment()
    assert compat.is_installed()
    compat.uninstall()


def test_hook_without_the_variable_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of a .pth file runs in every Python process."""
    lines = HOOK.read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("import ")
    program = f"import sys; before = set(sys.modules); exec({lines[0]!r}); print(sorted(set(sys.modules) - before))"
    environment = {name: text for name, text in os.environ.items() if name != "WEFT_COMPAT"}
    monkeypatch.setattr(os, "environ", environment)
    assert _run_python("-c", program) == "[]"
    program = (
        f"exec({lines[0]!r})\n"
        "import sys; print('numpy' in sys.modules)\n"
        "import onnxruntime; print(onnxruntime.__file__)"
    )
    assert _run_python("-c", program, WEFT_COMPAT="onnxruntime").splitlines() == ["False", OURS]


def test_wheel_has_the_hook() -> None:
    assert '"src/weft_compat.pth" = "weft_compat.pth"' in (SOURCE.parent / "pyproject.toml").read_text("utf-8")


PROGRAM = """
import os, sys, onnxruntime, __main__
print(onnxruntime.__file__)
print(__name__, sys.argv, os.environ["WEFT_COMPAT"])
print(__main__.__dict__ is globals(), os.path.basename(globals().get("__file__", "no file")))
"""


def _output_lines(text: str) -> list[str]:
    return text.replace(OURS, "weft").splitlines()


def test_run_script(tmp_path: Path) -> None:
    script = tmp_path / "inner" / "program.py"
    script.parent.mkdir()
    (script.parent / "sibling.py").write_text("VALUE = 3\n")
    script.write_text(PROGRAM + "import sibling\nprint(sibling.VALUE, sys.path[0] == os.path.dirname(__file__))\n")
    lines = _output_lines(_run_python("-m", "weft.compat", str(script), "-a", "b"))
    assert lines == ["weft", f"__main__ {[str(script), '-a', 'b']} {BOTH}", "True program.py", "3 True"]


def test_run_module(tmp_path: Path) -> None:
    package = tmp_path / "tool"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(PROGRAM + "from tool import __name__ as name\nprint(name, __package__)\n")
    path = f"{SOURCE}{os.pathsep}{tmp_path}"
    lines = _output_lines(_run_python("-m", "weft.compat", "-m", "tool", "x", PYTHONPATH=path))
    assert lines[0] == "weft"
    assert lines[1] == f"__main__ {[str(package / '__main__.py'), 'x']} {BOTH}"
    assert lines[2:] == ["True __main__.py", "tool tool"]


def test_run_standard_input() -> None:
    process = _start_python("-m", "weft.compat", "-", "x", input=PROGRAM)
    assert _output_lines(process.stdout) == [
        "weft",
        f"__main__ ['-', 'x'] {BOTH}",
        "True no file",
    ]


def test_run_code() -> None:
    lines = _output_lines(_run_python("-m", "weft.compat", "-c", PROGRAM, "x"))
    assert lines == ["weft", f"__main__ ['-c', 'x'] {BOTH}", "True no file"]


@pytest.mark.parametrize("arguments", [[], ["-x"], ["no such file.py"]])
def test_bad_arguments(arguments: list[str]) -> None:
    process = _start_python("-m", "weft.compat", *arguments)
    assert process.returncode != 0
    assert ("usage" in process.stderr) or ("can't open file" in process.stderr)
    assert "Traceback" not in process.stderr


def test_exit_status(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import sys; sys.exit(7)\n")
    assert _start_python("-m", "weft.compat", str(script)).returncode == 7


def test_spawned_processes_find_the_functions_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import multiprocessing, os\n"
        "def work(x): return x + 1, os.environ['WEFT_COMPAT']\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(work, [1, 2]))\n"
    )
    assert _run_python("-m", "weft.compat", str(script)) == str([(2, BOTH), (3, BOTH)])


@pytest.mark.usefixtures("installed")
def test_weft_is_not_compared_with_itself() -> None:
    with pytest.raises(InputError, match="onnxruntime means weft in this process"):
        OnnxruntimeContender("onnxruntime", "model.onnx", {})
