"""Test the page runner on a page with a defect of each kind, and on one without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from docs.test_pages import environment

from docs import blocks, checks, loose_comparison

WRONG = {
    "no language": "```\nweft info model.onnx\n```",
    "an error": "```python\n1 / 0\n```",
    "no error": "<!-- raises: ValueError -->\n```python\n1\n```",
    "another error": "<!-- raises: ValueError -->\n```python\n1 / 0\n```",
    "another output": '```python\nprint("cat")\n```\n\n<!-- output -->\n```text\ndog\n```',
    "another conversation": ">>> is not before this\n\n```pycon\n>>> 1 + 1\n'two'\n```",
    "an exit code": "```sh\nweft nonsense\n```",
    "no exit code": "<!-- exit: 1 -->\n```sh\nweft --version\n```",
    "bash": "```sh\ntrue | false\n```",
    "another answer": "```console\n$ echo cat\ndog\n```",
    "an unknown option": "<!-- not run: slow -->\n```sh\nweft info model.onnx --nonsense\n```",
    "a missing script": "<!-- not run: slow -->\n```sh\nscripts/nonsense\n```",
    "an unknown name": "<!-- not run: slow -->\n```python\nweft.nonsense()\n```",
    "an unknown keyword": '<!-- not run: slow -->\n```python\nweft.load("m", nonsense=1)\n```',
    "no Python": "<!-- not run: slow -->\n```python\nweft.load(\n```",
    "an unknown comment": "<!-- not ran: slow -->\n```python\n1\n```",
    "no JSON": "```json\n{\n```",
    "a program without a name": "```c\nint main(void) { return 0; }\n```",
}
RIGHT = """
<!-- python: x = 2 -->

- in a list

    ```python title="program.py"
    print("written")
    ```

```python
import asyncio

y = x + 1
await asyncio.sleep(0)
print("about 1.25 ms", y)
```

<!-- output -->
```text
about 3.5 µs …
```

<!-- raises: ZeroDivisionError -->
```python
y / 0
```

<!-- output -->
```text
ZeroDivisionError: …
```

```console
$ python program.py
written
$ weft --version
weft 0.0.0
```

```pycon
>>> y * [1]
[7, 8, 9]
>>> weft
Traceback (most recent call last):
NameError: …
```

```toml
a = 1
```

<!-- needs: a-missing-program -->
```sh
weft info model.onnx
```
"""


def run(page: str, folder: Path) -> list[dict[str, object]]:
    (folder / "bin").mkdir()
    weft = folder / "bin" / "weft"
    weft.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m weft "$@"\n', encoding="utf-8")
    weft.chmod(0o755)
    (folder / "page.md").write_text(page, encoding="utf-8")
    command = [sys.executable, "-m", "docs.page_runner", folder / "page.md", folder, folder / "results.json"]
    subprocess.run(command, env=environment(folder), check=True, timeout=120)
    outcomes: list[dict[str, object]] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return outcomes


def test_valid_page(tmp_path: Path) -> None:
    outcomes = run(RIGHT, tmp_path)
    assert [block["wrong"] for block in outcomes] == [None] * len(outcomes)
    assert [block["left_out"] for block in outcomes if block["left_out"]] == ["needs a-missing-program"]


def test_defects_are_reported(tmp_path: Path) -> None:
    page = "\n\n".join(f"{name}\n\n{text}" for name, text in WRONG.items())
    wrong = [block["line"] for block in run(page, tmp_path) if block["wrong"]]
    lines = page.split("\n")
    starts = {name: lines.index(name) for name in WRONG}
    reported = {max((start, name) for name, start in starts.items() if start < int(str(line)))[1] for line in wrong}
    assert set(WRONG) - reported == set()


def test_unclosed_block() -> None:
    with pytest.raises(blocks.BlockError, match="line 2"):
        list(blocks.parse_blocks("\n```python\n1"))


@pytest.mark.parametrize(
    ("expected", "printed", "fits"),
    [
        ("a  1.5 ms", "a 27 µs", True),
        ("a\nc", "a\nb\nc", True),
        ("a\nb", "b\na", False),
        ("…\nc", "a\nb\nc", True),
        ("one … three", "one two three", True),
        ("──── 1", "─ 2", True),
        ("1 KiB", "1 MiB", False),
        ("cat", "dog", False),
        ("x1", "x2", False),
    ],
)
def test_output_is_compared_loosely(expected: str, printed: str, fits: bool) -> None:
    assert (loose_comparison.find_missing_line(expected, printed) is None) is fits


def test_lines_that_need_a_shell() -> None:
    assert checks.parse_weft_command("weft run 'a b.onnx' # says") == ["run", "a b.onnx"]
    assert checks.parse_weft_command("weft run m.onnx | head") is None
    assert checks.parse_weft_command("WEFT_CACHE= weft run m.onnx") is None
    assert checks.parse_weft_command("python m.py") is None
    assert checks.is_standalone("weft run m.onnx | head")
    assert not checks.is_standalone("cd folder")
    assert not checks.is_standalone("for model in *.onnx; do")
    assert not checks.is_standalone("NAME=value")
    assert not checks.is_standalone("cat << END")
