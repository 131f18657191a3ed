"""The page of a model in a real browser: folding, search, keys, touch; and pages of unusual and invalid files."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import onnx
import pytest
from report import view_models
from report.browser import Page

import weft
from weft.errors import InputError, InvalidModelError
from weft.report.view import data_page, view_data

WIDTHS = (390, 1280)
RELU = "scene.boxes.find((box) => box.node?.name === '/encoder/layer.1/attn/Relu')"
MOST_VISIBLE = 60  # boxes at first


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of twelve blocks, with times."""
    loaded = weft.load(view_models.blocks(12), device="cpu", cache=False)
    return loaded.view(tmp_path_factory.mktemp("view") / "page.html", measure=True)


def write(folder: Path, content: bytes, **options: Any) -> Path:
    return weft.view(content, folder / "page.html", device="cpu", **options)


def visible(page: Page) -> list[str]:
    """Return the names of the boxes that are not folded into others."""
    names = page.evaluate("[...scene.opened(scene.root)].map((box) => box.node?.name ?? box.label)")
    assert isinstance(names, list)
    return names


def text(page: Page, element: str) -> str:
    return str(page.evaluate(f"document.getElementById('{element}').innerText"))


def centre(page: Page, box: str) -> tuple[float, float]:
    """Return the position of a box on the screen."""
    x, y = page.evaluate(
        f"(() => {{ const box = {box}; const area = weftView.area(); const at = document.getElementById('graph')"
        ".getBoundingClientRect(); const zoom = at.width / (area.right - area.left);"
        "return [at.left + (box.x + box.width / 2 - area.left) * zoom,"
        " at.top + (box.y + Math.min(box.height / 2, 16) - area.top) * zoom]; })()"
    )
    return x, y


def search(page: Page, words: str) -> list[str]:
    page.evaluate(f"document.getElementById('find').value = {json.dumps(words)}")
    page.evaluate("document.getElementById('find').dispatchEvent(new Event('input'))")
    hits = page.evaluate("[...document.querySelectorAll('#hits [role=option]')].map((hit) => hit.innerText)")
    assert isinstance(hits, list)
    return hits


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_page_draws(page: Page, folded: Path, width: int, dark: bool) -> None:
    page.open(folded, width, 800, dark=dark, touch=width < 500)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colors = page.evaluate(
        "(() => { const c = document.getElementById('graph');"
        "const pixels = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);"
        "return new Set(pixels).size; })()"
    )
    assert colors > 20
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (shade == "rgb(18, 20, 22)") == dark
    page.evaluate("document.getElementById('theme').click()")
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 20, 22)") != dark


def test_page_opens_the_first_of_many_equal_blocks(page: Page, folded: Path, tmp_path: Path) -> None:
    page.open(folded, 1280, 800)
    assert {"layer.0", "/encoder/layer.0/attn/Relu", "layer.1"} <= set(visible(page))
    assert "/encoder/layer.1/attn/Relu" not in visible(page)
    for content in (view_models.blocks(12), view_models.blocks(250), view_models.blocks(30, named=False)):
        page.open(write(tmp_path, content), 1280, 800)
        assert 20 < len(visible(page)) <= MOST_VISIBLE


def test_labels_overlap_neither_boxes_nor_borders(page: Page, folded: Path) -> None:
    page.open(folded, 1280, 800)
    page.evaluate("document.getElementById('unfold').click()")
    labels, overlapping = page.evaluate(
        "(() => { drawing.asSvg(); const all = []; const bad = [];"
        "for (const frame of [scene.root, ...scene.opened(scene.root)].filter((box) => box.open))"
        " for (const { text, x, y, wide } of frame.labels) { all.push(text);"
        "  const hits = (box) => x < box.left + box.width && x + wide > box.left"
        "   && y - 5 < box.top + box.height && y + 5 > box.top;"
        "  if (frame.members.some(hits) || (frame.parent && (x < 0 || x + wide > frame.width))) bad.push(text); }"
        "return [all.length, bad]; })()"
    )
    assert labels > 60
    assert overlapping == []


def test_clicks_open_close_and_select(page: Page, folded: Path) -> None:
    page.open(folded, 1280, 800)
    page.evaluate("document.getElementById('fold').click()")
    page.settle()
    block = "scene.boxes.find((box) => box.label === 'layer.1')"
    page.click(*centre(page, block))
    assert {"attn", "mlp", "/encoder/layer.1/Add"} <= set(visible(page))
    page.click(*centre(page, "scene.boxes.find((box) => box.label === 'attn' && box.parent.label === 'layer.1')"))
    page.click(*centre(page, RELU))
    details = text(page, "sheet")
    assert details.startswith("Relu")
    assert all(
        fact in details for fact in ("/encoder/layer.1/attn/Relu", "float32[batch, 16]", "Kernel", "cpu", "Time")
    )
    assert page.evaluate("decodeURIComponent(location.hash)") == "#/encoder/layer.1/attn/Relu"
    page.evaluate("document.getElementById('fold').click()")
    assert "attn" not in visible(page)
    page.evaluate("document.getElementById('unfold').click()")
    assert len(visible(page)) > 96
    for button in ("larger", "smaller", "fit", "side", "side"):
        page.evaluate(f"document.getElementById('{button}').click()")
    page.settle()


def test_search_finds_names_ops_shapes_and_weights(page: Page, folded: Path) -> None:
    page.open(folded, 1280, 800)
    assert len(search(page, "sigmoid")) == 12
    assert search(page, "layer.7 relu") == ["Relu\n/encoder/layer.7/attn/Relu"]
    assert len(search(page, "16x16 layer.3")) == 2
    assert len(search(page, "w11")) == 2
    assert search(page, "nothing like it") == []
    search(page, "layer.7 relu")
    page.evaluate("document.getElementById('find').focus()")
    page.press("ArrowDown")
    page.press("Enter")
    assert "/encoder/layer.7/attn/Relu" in visible(page)
    assert "/encoder/layer.7/attn/Relu" in text(page, "sheet")
    assert page.evaluate("document.activeElement.id") == "graph"


def test_keys_follow_lines(page: Page, folded: Path) -> None:
    page.open(folded, 1280, 800)
    page.evaluate("document.getElementById('graph').focus()")
    announced = []
    page.evaluate("document.getElementById('fold').click()")
    for key in ("ArrowDown", "ArrowDown", "Enter", "ArrowDown", "ArrowUp"):
        page.press(key)
        announced.append(text(page, "said"))
    assert announced[0].startswith("input x, float32")
    assert announced[1] == "layer.0, 8 nodes, closed"
    assert announced[2] == "layer.0, 8 nodes, open"
    assert page.evaluate("document.activeElement.id") == "graph"
    for key in ("+", "-", "f", "Escape"):
        page.press(key)
    assert "Choose a box" in text(page, "sheet")
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "find"


def test_tap_drag_and_pinch(page: Page, folded: Path) -> None:
    page.open(folded, 390, 844, touch=True)
    assert page.evaluate("document.querySelector('main').classList.contains('alone')")
    page.evaluate("document.getElementById('fold').click()")
    page.settle()
    page.tap(*centre(page, "scene.boxes.find((box) => box.label === 'layer.0')"))
    assert "attn" in visible(page)
    before = page.evaluate("weftView.area()")

    def touch(kind: str, *points: tuple[float, float]) -> None:
        page.send("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y} for x, y in points])

    touch("touchStart", (200, 600))
    touch("touchMove", (200, 500))
    touch("touchEnd")
    dragged = page.evaluate("weftView.area()")
    assert dragged["top"] > before["top"]
    touch("touchStart", (150, 500), (250, 500))
    touch("touchMove", (100, 500), (300, 500))
    touch("touchEnd")
    pinched = page.evaluate("weftView.area()")
    assert pinched["right"] - pinched["left"] < dragged["right"] - dragged["left"]


def test_lists_colours_and_tips(page: Page, folded: Path) -> None:
    page.open(folded, 1280, 800)
    for mode in page.evaluate("[...document.getElementById('colour').options].map((option) => option.value)"):
        page.evaluate(
            f"(() => {{ const c = document.getElementById('colour'); c.value = '{mode}';"
            "c.dispatchEvent(new Event('change')); })()"
        )
        page.settle()
        assert text(page, "legend")
    page.move(*centre(page, "scene.boxes.find((box) => box.label === 'layer.0')"))
    assert "8 nodes: " in text(page, "tip")
    page.evaluate("document.getElementById('tab-kernels').click()")
    assert "the slowest first" in text(page, "sheet")
    page.evaluate("document.querySelector('#sheet .item').click()")
    page.evaluate("document.getElementById('tab-weights').click()")
    assert "float32[16, 16]" in text(page, "sheet")
    assert page.evaluate("document.querySelectorAll('#sheet svg.histogram').length") == 12
    page.evaluate("document.getElementById('tab-model').click()")
    assert all(fact in text(page, "sheet") for fact in ("96", "One run", "Inputs", "float32[batch, 16]"))


def test_the_hash_of_an_address_selects_a_node(page: Page, folded: Path) -> None:
    page.open(folded, 1280, 800)
    page.evaluate("void (location.hash = encodeURIComponent('/encoder/layer.5/mlp/Mul'))")
    page.settle()
    assert "/encoder/layer.5/mlp/Mul" in text(page, "sheet")


def test_the_graph_is_saved_as_svg(page: Page, tmp_path: Path) -> None:
    page.open(write(tmp_path, view_models.hostile()), 1280, 800)
    page.evaluate("document.getElementById('unfold').click()")
    page.evaluate(
        "(() => { URL.createObjectURL = (blob) => { window.saved = blob; return '#'; };"
        "HTMLAnchorElement.prototype.click = () => {}; document.getElementById('export').click(); })()"
    )
    content = page.evaluate("window.saved.text()")
    parsed = f"new DOMParser().parseFromString({json.dumps(content)}, 'image/svg+xml')"
    assert page.evaluate(f"{parsed}.querySelectorAll('parsererror, script, img, image').length") == 0
    assert page.evaluate(f"{parsed}.querySelectorAll('text').length") > 5


@pytest.mark.parametrize("kind", ["looping", "calling", "unknown", "invalid", "hostile"])
def test_unusual_models_are_shown(page: Page, tmp_path: Path, kind: str) -> None:
    page.open(write(tmp_path, getattr(view_models, kind)()), 1280, 800)
    page.evaluate("document.getElementById('unfold').click()")
    page.settle()
    names = visible(page)
    problem = text(page, "problem") if page.evaluate("!document.getElementById('problem').hidden") else ""
    match kind:
        case "looping":
            assert {"loop", "body", "inside", "state", "after"} <= set(names)
        case "calling":
            assert {"first", "first/add", "second/relu"} <= set(names)
        case "unknown":
            assert "unknown operator com.acme.Magic" in problem
            assert search(page, "magic") == ["Magic\nstrange"]
            assert page.evaluate("scene.values.find((value) => value.name === 'a').type") == "float32[batch, 16]"
        case "invalid":
            assert "defined more than once" in problem
            assert {"lonely", "again", "round", "about", "missing", "absent"} <= set(names)
            assert search(page, "absent") == ["absent\nundefined"]
        case "hostile":
            assert view_models.HOSTILE in problem
            page.evaluate("document.getElementById('tab-weights').click()")
            assert "2 elements not finite" in text(page, "sheet")
    assert bool(problem) == (kind in ("unknown", "invalid", "hostile"))


def test_names_are_escaped() -> None:
    content = data_page(view_data(view_models.hostile(), device="cpu"))
    assert "<img" not in content
    assert content.count("</script>") == 2
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', content)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.search(r'(src|href)="', content)


def test_two_thousand_nodes_unfold(page: Page, tmp_path: Path) -> None:
    page.open(write(tmp_path, view_models.blocks(250)), 1280, 800)
    assert page.evaluate("scene.nodes.length") == 2000
    paints = "performance.getEntriesByType('paint').map((paint) => [paint.name, Math.round(paint.startTime)])"
    drawn = "Math.round(performance.getEntriesByName('weft-drawn')[0].startTime)"
    print("milliseconds:", page.evaluate(paints), "drawn", page.evaluate(drawn))
    page.evaluate("document.getElementById('unfold').click()")
    page.settle()
    assert len(visible(page)) > 2000


def test_times_of_a_saved_profile_are_shown(tmp_path: Path) -> None:
    content = view_models.blocks(1)
    loaded = weft.load(content, device="cpu", cache=False)
    loaded.profile(repeat=1).save(tmp_path / "profile.json")
    page = data_page(view_data(content, profile=tmp_path / "profile.json"))
    match = re.search(r'id="data">(.*?)</script>', page)
    assert match is not None
    data = json.loads(match[1])
    assert data["run"]["runs"] == 1
    assert sum(work["share"] for work in data["works"]) == pytest.approx(1)
    assert all(work["device"] == "cpu" and work["template"] for work in data["works"])
    (tmp_path / "other.json").write_text('{"kernels": 3}')
    with pytest.raises(InputError, match=r"other.json is not a profile"):
        view_data(content, profile=tmp_path / "other.json")


def test_external_weights_are_counted(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    proto = onnx.ModelProto.FromString(view_models.blocks(12))
    onnx.save(proto, file, save_as_external_data=True, location="weights.bin", size_threshold=0)
    data = view_data(file, device="cpu")
    assert data["size"] == file.stat().st_size
    assert data["external"] == (tmp_path / "weights.bin").stat().st_size == 12 * 16 * 16 * 4
    page.open(weft.view(file, tmp_path / "page.html", device="cpu"), 1280, 800)
    assert "12.0 KiB of it external data" in text(page, "sheet")


def test_a_path_shows_its_page_in_notebooks(tmp_path: Path) -> None:
    path = write(tmp_path, view_models.hostile())
    shown = path._repr_html_()  # type: ignore[attr-defined]
    frame = re.fullmatch(r'<iframe sandbox="[a-z -]*" style="[^"]*" srcdoc="([^"]*)"></iframe>', shown)
    assert frame is not None
    assert "allow-same-origin" not in shown
    assert unescape(frame[1]) == path.read_text(encoding="utf-8")
    assert path.parent._repr_html_() is None  # type: ignore[attr-defined]


def test_files_that_are_no_model_are_refused() -> None:
    with pytest.raises(InvalidModelError, match="web page"):
        view_data(b"<!doctype html><html><body>not found</body></html>")
