"""weft in a notebook: completion, progress, tables, pages, logs, pickles. All tests share a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from notebooks.kernel import Session, notebook, page
from onnx import TensorProto, helper, numpy_helper
from report.browser import browser, find_browser

NAME = "a name from a file <script>document.title='run'</script>"
TABLES = ["model", "model.inputs", "model.outputs", "model.memory({'n': 8})", "model.profile()", "weft.devices()"]
TABLES += ["model.report()", "model.metadata", "model.bench()", "model.run(weft.random_inputs(model, batch=2))"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebook")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32) * 2, "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"], name=NAME), helper.make_node("Relu", ["p"], ["y"])]
    graph = helper.make_graph(nodes, NAME, [x], [y], [weights])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=NAME), folder / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[Session]:
    with notebook(folder) as session:
        session.run("import weft")
        session.run("from weft.runtime import progress\nprogress.PATIENCE = 1000.0  # however busy this machine is")
        session.run("model = weft.load('model.onnx', device='cpu')")
        yield session


def test_completion_offers_public_names(session: Session) -> None:
    names = {name.rpartition(".")[2] for name in session.complete("weft.")}
    assert {"load", "devices", "Model", "random_inputs"} <= names
    assert not {"annotations", "sys", "TYPE_CHECKING"} & names
    assert {name.rpartition(".")[2] for name in session.complete("model.pro")} >= {"profile"}


def test_a_quick_load_shows_nothing(session: Session) -> None:
    assert session.cells[2].outputs == []


def test_a_long_load_shows_progress_and_removes_it(session: Session) -> None:
    cell = session.run(
        "progress.PATIENCE, progress.REFRESH_SECONDS, lines = 0.0, 0.01, []\n"
        "class Line(progress.NotebookLine):\n"
        "    def update(self, text, *numbers):\n"
        "        super().update(text, *numbers)\n"
        "        lines.append(text)\n"
        "progress.NotebookLine = Line\n"
        "with progress.stages('loading') as line:\n"
        "    line.stage('building kernels', 0.5, '4 of 8')\n"
        "    while not any('4 of 8' in line for line in lines): pass\n"
        "progress.PATIENCE = 1000.0"
    )
    assert any(re.fullmatch(r"loading: building kernels 4 of 8 \[ *\d+%\] 0:00", text) for text in session.shown)
    assert session.shown[-1] == ""
    assert [output["data"] for output in cell.outputs] == [{"text/plain": ""}]
    session.run("import sys; 'ipywidgets' in sys.modules")
    assert session.cells[-1].outputs[0]["data"]["text/plain"] == "False"


def test_results_show_as_tables(session: Session) -> None:
    for expression in TABLES:
        (output,) = session.run(expression).outputs
        html, text = output["data"].get("text/html"), output["data"]["text/plain"]
        assert html is not None, f"{expression} shows as text only"
        assert "<table" in html, expression
        assert "<script" not in html, expression
        assert len(text) < 2000, expression
        assert "object at 0x" not in text, expression


def test_view_shows_the_page(session: Session, folder: Path) -> None:
    (output,) = session.run("weft.view('model.onnx', 'view.html', device='cpu')").outputs
    assert output["data"]["text/html"].startswith("<iframe sandbox=")
    assert "view.html" in output["data"]["text/plain"]
    assert (folder / "view.html").is_file()


def test_logs_and_errors_show_below_their_cells(session: Session) -> None:
    cell = session.run(
        "import logging\n"
        "logging.basicConfig(level=logging.INFO, force=True)\n"
        "weft.load('model.onnx', device='cpu')\n"
        "logging.getLogger().setLevel(logging.WARNING)"
    )
    logged = "".join(output.get("text", "") for output in cell.outputs)
    assert "INFO:weft.loading:model.onnx: loaded in " in logged
    cell = session.run("try: model.run({'y': 1})\nexcept weft.WeftError as error: print(error)")
    assert "hint:" in cell.outputs[0]["text"]


def test_a_pickled_model_is_the_same(session: Session) -> None:
    cell = session.run(
        "import pickle, os\n"
        "inputs = weft.random_inputs(model, batch=3)\n"
        "content = pickle.dumps(model)\n"
        "other = pickle.loads(content)\n"
        "len(content) < 1000, other(**inputs).tobytes() == model(**inputs).tobytes()"
    )
    assert cell.outputs[0]["data"]["text/plain"] == "(True, True)"


def test_results_can_be_awaited(session: Session) -> None:
    """A kernel runs its own event loop."""
    cell = session.run("(await model.run_async(inputs))['y'].shape")
    assert cell.outputs[0]["data"]["text/plain"] == "(3, 4)"


def test_tables_are_readable_on_phones_and_desktops(session: Session, folder: Path, tmp_path: Path) -> None:
    command = find_browser()
    if command is None:
        pytest.skip("no chromium here (on Debian: apt-get install chromium)")
    for expression in TABLES:
        if all(cell.source != expression for cell in session.cells):
            session.run(expression)
    file = folder / "cells.html"
    file.write_text(page(session.cells), encoding="utf-8")
    with browser(command, tmp_path / "profile") as opened:
        for width, dark in ((390, False), (390, True), (1280, False), (1280, True)):
            opened.open(file, width, 900, dark=dark)
            assert opened.evaluate("document.title") == "cells"
            assert opened.evaluate("document.documentElement.scrollWidth") <= width
            faint: list[Any] = opened.evaluate(CONTRASTS)
            assert not faint, f"{width} px, dark {dark}: {faint[:3]}"
            (folder / f"cells-{width}-{'dark' if dark else 'light'}.png").write_bytes(opened.screenshot())
        assert opened.problems == []
        assert [url for url in opened.requests if not url.startswith("file:")] == []


CONTRASTS = """
[...document.querySelectorAll('.out td, .out th')].filter((cell) => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const text = parse(getComputedStyle(cell).color), page = parse(getComputedStyle(document.body).backgroundColor);
  const light = (c) => (0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]) / 255;
  return Math.abs(light(text) - light(page)) < 0.4;
}).map((cell) => cell.textContent)
"""
