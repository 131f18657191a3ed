"""What runs pages finds what is wrong on them: a page with a defect of each kind, and one without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from docs.test_pages import environment

from docs import blocks, checks, loosely

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
    "an option that is none": "<!-- not run: slow -->\n```sh\nweft info model.onnx --nonsense\n```",
    "a script that is none": "<!-- not run: slow -->\n```sh\nscripts/nonsense\n```",
    "a name that is none": "<!-- not run: slow -->\n```python\nweft.nonsense()\n```",
    "a keyword that is none": '<!-- not run: slow -->\n```python\nweft.load("m", nonsense=1)\n```',
    "no Python": "<!-- not run: slow -->\n```python\nweft.load(\n```",
    "a comment that means nothing": "<!-- not ran: slow -->\n```python\n1\n```",
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

<!-- needs: a-program-that-nobody-has -->
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
    found: list[dict[str, object]] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return found


def test_a_page_that_is_right(tmp_path: Path) -> None:
    found = run(RIGHT, tmp_path)
    assert [block["wrong"] for block in found] == [None] * len(found)
    assert [block["left_out"] for block in found if block["left_out"]] == ["needs a-program-that-nobody-has"]


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    page = "\n\n".join(f"{name}\n\n{text}" for name, text in WRONG.items())
    wrong = [block["line"] for block in run(page, tmp_path) if block["wrong"]]
    lines = page.split("\n")
    starts = {name: lines.index(name) for name in WRONG}
    found = {max((start, name) for name, start in starts.items() if start < int(str(line)))[1] for line in wrong}
    assert set(WRONG) - found == set()


def test_a_block_has_an_end() -> None:
    with pytest.raises(blocks.BlockError, match="line 2"):
        list(blocks.blocks("\n```python\n1"))


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
    assert (loosely.missing(expected, printed) is None) is fits


def test_only_what_needs_a_shell_gets_one() -> None:
    assert checks.words_of_weft("weft run 'a b.onnx' # says") == ["run", "a b.onnx"]
    assert checks.words_of_weft("weft run m.onnx | head") is None
    assert checks.words_of_weft("WEFT_CACHE= weft run m.onnx") is None
    assert checks.words_of_weft("python m.py") is None
    assert checks.stands_alone("weft run m.onnx | head")
    assert not checks.stands_alone("cd folder")
    assert not checks.stands_alone("for model in *.onnx; do")
    assert not checks.stands_alone("NAME=value")
    assert not checks.stands_alone("cat << END")
