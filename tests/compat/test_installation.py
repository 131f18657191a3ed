"""`import onnxruntime` that means weft: in this process, in a program's, and in those that it starts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from weft import compat
from weft.compat.installation import API_LEVEL, install_as_told
from weft.errors import InputError

SOURCE = Path(__file__).parents[2] / "src"
OURS = str(SOURCE / "weft" / "compat" / "onnxruntime" / "__init__.py")
HOOK = SOURCE / "weft_compat.pth"


@pytest.fixture
def installed() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()
    assert not compat.is_installed()


def _python(*arguments: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **variables}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_installed_and_removed_again() -> None:
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
def test_classes_are_one_however_they_are_imported() -> None:
    import onnxruntime
    from onnxruntime.capi import _pybind_state, onnxruntime_pybind11_state
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

    import weft.compat.onnxruntime as drop_in

    assert onnxruntime.InferenceSession is InferenceSession is drop_in.InferenceSession
    assert _pybind_state.InvalidArgument is onnxruntime_pybind11_state.InvalidArgument
    assert drop_in.capi.onnxruntime_pybind11_state.Fail is onnxruntime_pybind11_state.Fail


@pytest.mark.usefixtures("installed")
def test_what_it_lacks_is_an_import_error() -> None:
    with pytest.raises(ImportError):
        importlib.import_module("onnxruntime.no_such_module")
    with pytest.raises(ImportError):
        exec("from onnxruntime import no_such_name")
    assert importlib.util.find_spec("onnxruntime.session") is None


def test_packages_find_it_where_only_weft_is_installed(tmp_path: Path) -> None:
    installed_in = Path(numpy.__file__).parents[1]
    for package in installed_in.iterdir():
        if not package.name.startswith("onnxruntime"):
            (tmp_path / package.name).symlink_to(package)
    program = (
        f"import sys; sys.path[sys.path.index({str(installed_in)!r})] = {str(tmp_path)!r}\n"
        "import weft.compat; weft.compat.install()\n"
        "import importlib.metadata as metadata, importlib.util as util\n"
        "print(metadata.version('onnxruntime'), metadata.distribution('onnxruntime').metadata['Name'])\n"
        "print(util.find_spec('onnxruntime').name, util.find_spec('onnxruntime.quantization'))\n"
        "print('onnxruntime' in [found.metadata['Name'] for found in metadata.distributions()])\n"
        "try: metadata.version('onnxruntime-gpu')\n"
        "except metadata.PackageNotFoundError: print('no other')\n"
        "from onnxruntime.backend import backend, prepare; print(prepare.__self__ is backend.OnnxRuntimeBackend)\n"
        "from onnxruntime.capi import _pybind_state as inner\n"
        "try: inner.quantize_matmul_4bits(1)\n"
        "except inner.NotImplemented as error: print('quantize_matmul_4bits' in str(error))\n"
    )
    told = _python("-c", program).splitlines()
    assert told == [f"{API_LEVEL} onnxruntime", "onnxruntime None", "True", "no other", "True", "True"]


@pytest.mark.usefixtures("installed")
def test_the_version_is_that_of_the_real_one_where_it_is_installed() -> None:
    real = [found for found in importlib.metadata.distributions() if found.metadata["Name"] == "onnxruntime"]
    assert len(real) == 1


def test_the_variable_names_what_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_COMPAT", "tensorflow")
    with pytest.warns(UserWarning, match="no stand-in for 'tensorflow'"):
        install_as_told()
    assert not compat.is_installed()
    monkeypatch.setenv("WEFT_COMPAT", "onnxruntime, ")
    install_as_told()
    assert compat.is_installed()
    compat.uninstall()


def test_the_hook_asks_for_the_variable_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of a .pth file runs in every Python process: without the variable it imports nothing."""
    lines = HOOK.read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("import ")
    program = f"import sys; before = set(sys.modules); exec({lines[0]!r}); print(sorted(set(sys.modules) - before))"
    environment = {name: text for name, text in os.environ.items() if name != "WEFT_COMPAT"}
    monkeypatch.setattr(os, "environ", environment)
    assert _python("-c", program) == "[]"
    asked = _python("-c", f"exec({lines[0]!r})\nimport sys; print('numpy' in sys.modules)\nimport onnxruntime\n"
                    "print(onnxruntime.__file__)", WEFT_COMPAT="onnxruntime")  # fmt: skip
    assert asked.splitlines() == ["False", OURS]


def test_the_wheel_brings_the_hook() -> None:
    assert '"src/weft_compat.pth" = "weft_compat.pth"' in (SOURCE.parent / "pyproject.toml").read_text("utf-8")


SHOWS = """
import os, sys, onnxruntime, __main__
print(onnxruntime.__file__)
print(__name__, sys.argv, os.environ["WEFT_COMPAT"])
print(__main__.__dict__ is globals(), os.path.basename(globals().get("__file__", "no file")))
"""


def _shown(text: str) -> list[str]:
    return text.replace(OURS, "weft").splitlines()


def test_a_script_runs_as_python_runs_it(tmp_path: Path) -> None:
    script = tmp_path / "inner" / "program.py"
    script.parent.mkdir()
    (script.parent / "sibling.py").write_text("VALUE = 3\n")
    script.write_text(SHOWS + "import sibling\nprint(sibling.VALUE, sys.path[0] == os.path.dirname(__file__))\n")
    told = _shown(_python("-m", "weft.compat", str(script), "-a", "b"))
    assert told == ["weft", f"__main__ {[str(script), '-a', 'b']} onnxruntime", "True program.py", "3 True"]


def test_a_module_runs_as_python_runs_it(tmp_path: Path) -> None:
    package = tmp_path / "tool"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(SHOWS + "from tool import __name__ as name\nprint(name, __package__)\n")
    told = _shown(_python("-m", "weft.compat", "-m", "tool", "x", PYTHONPATH=f"{SOURCE}{os.pathsep}{tmp_path}"))
    assert told[0] == "weft"
    assert told[1] == f"__main__ {[str(package / '__main__.py'), 'x']} onnxruntime"
    assert told[2:] == ["True __main__.py", "tool tool"]


def test_code_on_standard_input_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "weft.compat", "-", "x"],
        input=SHOWS,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert _shown(done.stdout) == ["weft", "__main__ ['-', 'x'] onnxruntime", "True no file"]


def test_code_runs_as_python_runs_it() -> None:
    told = _shown(_python("-m", "weft.compat", "-c", SHOWS, "x"))
    assert told == ["weft", "__main__ ['-c', 'x'] onnxruntime", "True no file"]


@pytest.mark.parametrize("arguments", [[], ["-x"], ["no such file.py"]])
def test_what_cannot_be_run_is_said(arguments: list[str]) -> None:
    done: Any = subprocess.run(
        [sys.executable, "-m", "weft.compat", *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert ("usage" in done.stderr) or ("can't open file" in done.stderr)
    assert "Traceback" not in done.stderr


def test_an_exit_status_is_the_program_s(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import sys; sys.exit(7)\n")
    done = subprocess.run(
        [sys.executable, "-m", "weft.compat", str(script)], env={**os.environ, "PYTHONPATH": str(SOURCE)}, timeout=120
    )
    assert done.returncode == 7


def test_functions_of_a_script_reach_processes_that_it_spawns(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import multiprocessing, os\n"
        "def work(x): return x + 1, os.environ['WEFT_COMPAT']\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(work, [1, 2]))\n"
    )
    assert _python("-m", "weft.compat", str(script)) == "[(2, 'onnxruntime'), (3, 'onnxruntime')]"


@pytest.mark.usefixtures("installed")
def test_weft_is_not_compared_with_itself() -> None:
    from weft.compat.onnxruntime.contender import OnnxruntimeContender

    with pytest.raises(InputError, match="onnxruntime means weft in this process"):
        OnnxruntimeContender("onnxruntime", "model.onnx", {})
