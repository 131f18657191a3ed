"""Test that README's install commands lead from a clone to a prediction, and that its links work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from docs.sample_files import prepare

from docs import blocks, checks

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = 4  # fewer than five


def install_commands() -> list[str]:
    """Return the commands of README's section "Install" that start from a clone."""
    section = README.partition("## Install")[2].partition("from a clone")[2].partition("\n## ")[0]
    return [
        line
        for block in blocks.parse_blocks(section)
        if block.language == "sh"
        for line in checks.command_lines(block.code)
    ]


def test_installing_takes_few_commands() -> None:
    assert len(" && ".join(install_commands()).split(" && ")) <= COMMANDS


@pytest.mark.slow(reason="it downloads what weft needs")
def test_prediction_in_a_new_environment(tmp_path: Path) -> None:
    clone = tmp_path / "weft"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    for name in filter(None, listed):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    prepare(tmp_path / "files")
    for name in ("your.onnx", "photo.jpg", "labels.txt"):
        shutil.copy(tmp_path / "files" / name, clone / name)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    process = subprocess.run(
        ["bash", "-e", "-c", "\n".join(install_commands())], cwd=clone, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert any(label in process.stdout for label in ("cat", "dog", "horse", "ship", "lorry")), process.stdout


def test_links_work() -> None:
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "tests/docs/README.md")]
    wrong = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not wrong, wrong


def test_nobody_is_sent_to_another_project() -> None:
    """The distribution is called weft-onnx: the name `weft` on PyPI is another project's."""
    listed = subprocess.run(
        [
            "git",
            "grep",
            "-nE",
            r"pip install ([^|&;]* )?[\"']?weft(\[|[\"' `]|$)",
            "--",
            "*.md",
            "*.py",
            "*.toml",
            "scripts",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 128:
        pytest.skip("this is no clone")
    assert listed.stdout == ""
