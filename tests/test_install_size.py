"""The core installation stays small: the size of the wheel, and its dependencies.

The limits leave a quarter of room; what goes beyond them belongs into an extra, or out of the package.
`scripts/check-wheel` measures the dependencies, docs/reference/platforms.md states them.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from weft.cache.pack import SUFFIX

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "weft"
MOST_INSTALLED = 9_000_000  # bytes without packs; 7.9 million when this was written
MOST_PACKED = 3_900_000  # bytes of the wheel without packs; 3.2 million
MOST_IN_PACKS = 2_000_000
MOST_IN_A_FILE = 120_000
LANGUAGE_MODEL = "generation/demo_model/model.onnx"  # tests/generation/test_demo_model.py limits it
DEPENDENCIES = {"llvmlite", "ml_dtypes", "numpy", "onnx", "platformdirs", "rich"}


def contents() -> dict[str, bytes]:
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in files}


def test_package_is_small() -> None:
    files = contents()
    packs = [name for name in files if name.endswith(SUFFIX)]
    assert 0 < sum(len(files.pop(name)) for name in packs) < MOST_IN_PACKS
    assert sum(map(len, files.values())) < MOST_INSTALLED
    assert sum(len(zlib.compress(content, 6)) + 300 for content in files.values()) < MOST_PACKED  # 300: names, twice
    assert [name for name, content in files.items() if len(content) > MOST_IN_A_FILE] == [LANGUAGE_MODEL]


def test_package_has_few_dependencies() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert listed
    assert set(re.findall(r'"(\w+)', listed[1])) == DEPENDENCIES
