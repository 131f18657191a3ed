"""Builds the wheel of this folder (PEP 517): its modules, and metadata as pyproject.toml states it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

HERE = Path(__file__).parent


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    project = (HERE / "pyproject.toml").read_text(encoding="utf-8")
    version = re.findall(r'^version = "(.*)"', project, re.M)[0]
    entries = project.partition('[project.entry-points."weft.devices"]')[2].replace('"', "")
    info = f"acme_weft-{version}.dist-info"
    files = {path.name: path.read_text(encoding="utf-8") for path in HERE.glob("acme_*.py")} | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: acme-weft\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: acme\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[weft.devices]{entries}",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    name = f"acme_weft-{version}-py3-none-any.whl"
    with ZipFile(Path(wheel_directory) / name, "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
    return name
