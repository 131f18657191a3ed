"""magika identifies the types of files in this repository, and of some texts."""

from __future__ import annotations

from pathlib import Path

from magika import Magika
from script_output import print_results

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = ("README.md", "pyproject.toml", "LICENSE", "scripts/test", "src/weft/py.typed", "src/weft/compiler.py",
         "src/weft/ops/__init__.pyi", "tests/models/models.tsv", "tests/packages/requirements.txt")  # fmt: skip
TEXTS = ("SELECT name FROM users WHERE id = 7;", "#include <stdio.h>\nint main(void) { return 0; }\n", '{"a": [1, 2]}',
         "def f(x):\n    return x + 1\n", "<html><body><p>hello</p></body></html>", "hello there")  # fmt: skip

magika = Magika()


def results() -> list[object]:
    identified = magika.identify_paths([REPOSITORY / file for file in FILES])
    identified += [magika.identify_bytes(text.encode()) for text in TEXTS]
    return [[result.output.label, result.dl.label, result.prediction.score] for result in identified]


if __name__ == "__main__":
    print_results(results)
