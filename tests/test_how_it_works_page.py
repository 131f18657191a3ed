"""Test docs/how-it-works.md, which shows a small model at every stage.

`WEFT_WRITE_DOCS=1 pytest tests/test_how_it_works_page.py` writes its listings and leaves the prose as it is. A listing
is a fence with a title: the name of a file that `--dump` writes, or of a part of one. Kernels are built for a fixed
processor and GPU, so the page is the same on every machine.
"""

from __future__ import annotations

import inspect
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from models.code_digests import gpu_limits

import weft
from weft.backends.device import CompilingDriver
from weft.backends.naming import name_kernels
from weft.backends.webgpu.compile import wgsl_text
from weft.backends.webgpu.targets import build_target
from weft.backends.webgpu.wgsl_types import Abilities
from weft.fuse import fuse
from weft.kernels.sections import build_sections
from weft.loading import open_pipeline
from weft.opset import reductions
from weft.plan.printing import format_plan
from weft.runtime.options import LoadOptions

PAGE = Path(__file__).parent.parent / "docs" / "how-it-works.md"
BLOCK = re.compile(r'(```\w+ title=")([^"]+)("\n)(.*?)(```)', re.DOTALL)
COLUMNS = 118
PROCESSOR = "x86-64-v3"  # AVX2: vectors of 8 floats
BATCH = 1000


def small_model() -> weft.Graph:
    random = np.random.default_rng(0)
    graph = weft.Graph("small")
    x = graph.input("x", ("batch", 32), "float32")
    w = graph.parameter("w", random.normal(size=(32, 16)).astype(np.float32))
    b = graph.parameter("b", random.normal(size=16).astype(np.float32))
    hidden = weft.ops.relu(weft.ops.add(weft.ops.mat_mul(x, w, name="product"), b, name="biased"), name="hidden")
    graph.output(weft.ops.softmax(hidden, name="y"))
    return graph


def listings(folder: Path) -> dict[str, str]:
    """Return the listings by title: stages as `--dump` writes them, and parts of the kernels' code."""
    file = folder / "small.onnx"
    small_model().to_onnx(file)
    dump = folder / "stages"
    pipeline = open_pipeline(file, LoadOptions(device="cpu", threads=2, dump=dump, cache=False))
    assert isinstance(pipeline.driver, CompilingDriver)
    pipeline.driver = pipeline.driver.for_target(PROCESSOR)
    program = pipeline.optimise(pipeline.trace())
    compiled = pipeline.compile(program)
    runner = pipeline.start(compiled)
    stages = {path.name: path.read_text("utf-8").replace(f"{file}", file.name) for path in dump.glob("*.txt")}
    kernels = {path.name.partition("_")[0] + path.suffix: path.read_text("utf-8") for path in dump.glob("kernels/*")}
    plan = runner.plan({"batch": BATCH})
    assert plan is not None
    limits, abilities = gpu_limits(False), Abilities(int64=False, float64=False, float16=False)
    target = build_target(limits, abilities)
    shaders = {
        kernel.name.partition("_")[0]: wgsl_text(kernel, abilities)
        for kernel in name_kernels(build_sections(fuse(program, target), target)).values()
    }
    return {
        **stages,
        "src/weft/opset/reductions.py": "\n\n".join(
            map(inspect.getsource, (reductions._exp_below_highest, reductions.softmax))
        ),
        "plan.txt": format_plan(plan, {"batch": BATCH}),
        "kernels/contract.txt, its innermost loop": _between(kernels["contract.txt"], "for k0 in", "out[", rows=1),
        "kernels/rows.txt": kernels["rows.txt"],
        "kernels/contract.ll, a part": _between(kernels["contract.ll"], "load <8 x float>", "call <8 x float>", rows=2),
        "kernels/rows.wgsl, a part": _between(shaders["rows"], "@compute", "across_maximum", rows=1),
    }


def _between(text: str, first: str, last: str, rows: int) -> str:
    """Return the lines from the one with `first` to `rows` lines from the next one with `last`."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if first in line)
    end = next(number for number, line in enumerate(lines) if number > start and last in line)
    excerpt = lines[start : end + rows]
    indent = min(len(line) - len(line.lstrip()) for line in excerpt)
    return "\n".join(line[indent:] for line in excerpt)


def _truncate_lines(text: str) -> str:
    """Cut lines that are wider than the page."""
    text = re.sub(r"  # type: ignore.*", "", text)
    return "".join(f"{line if len(line) <= COLUMNS else line[: COLUMNS - 1] + '…'}\n" for line in text.splitlines())


def fill_page(page: str, texts: Mapping[str, str]) -> str:
    """Return the page with these listings; a stage is matched by name if its number changes."""
    numbered = {re.sub(r"^\d+-", "", title): title for title in texts}

    def fill(block: re.Match[str]) -> str:
        title = numbered[re.sub(r"^\d+-", "", block[2])]
        return f"{block[1]}{title}{block[3]}{_truncate_lines(texts[title])}{block[5]}"

    return BLOCK.sub(fill, page)


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="the page shows Linux on x86-64")
def test_page_shows_the_stages(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    updated = fill_page(page, listings(tmp_path))
    if os.environ.get("WEFT_WRITE_DOCS"):
        PAGE.write_text(updated, encoding="utf-8")
        page = updated
    assert page == updated, "run WEFT_WRITE_DOCS=1 pytest tests/test_how_it_works_page.py"


def test_model_of_the_page_computes_softmax() -> None:
    model = small_model().compile(device="cpu", cache=False)
    x = np.random.default_rng(4).normal(size=(5, 32)).astype(np.float32)
    hidden = np.maximum(x @ model.weights["w"] + model.weights["b"], 0)
    weights = np.exp(hidden - hidden.max(axis=1, keepdims=True))
    np.testing.assert_allclose(model(x), weights / weights.sum(axis=1, keepdims=True), rtol=1e-5)
