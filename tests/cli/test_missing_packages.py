"""An installation with only the runtime (weft and numpy) gets a clear error from the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["rich", "onnx"])
def test_missing_package_is_named(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from weft.cli import main; sys.exit(main(['ops']))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    message = " ".join(process.stderr.split())
    assert process.returncode == 1
    assert message.startswith(f"error: this command needs the package {package}, which is not installed")
    assert f"hint: pip install {package}" in message
