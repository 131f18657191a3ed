"""The page that shows a model, in a real browser: folding, searching, keys, touch; and what is shown of any file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from report import view_models
from report.browser import Page

import weft
from weft.errors import InputError, InvalidModelError
from weft.report.view import view_page

WIDTHS = (390, 1280)
RELU = "scene.boxes.find((box) => box.node?.name === '/encoder/layer.0/attn/Relu')"


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of twelve blocks, with times."""
    loaded = weft.load(view_models.blocks(12), device="cpu", cache=False)
    return loaded.view(tmp_path_factory.mktemp("view") / "page.html", measure=True)


def write(folder: Path, content: bytes, **options: Any) -> Path:
    return weft.view(content, folder / "page.html", device="cpu", **options)


def shown(page: Page) -> list[str]:
    """What the boxes say that are not folded into others."""
    found = page.evaluate("[...scene.opened(scene.root)].map((box) => box.node?.name ?? box.label)")
    assert isinstance(found, list)
    return found


def text(page: Page, place: str) -> str:
    return str(page.evaluate(f"document.getElementById('{place}').innerText"))


def place(page: Page, box: str) -> tuple[float, float]:
    """Where the middle of a box is on the screen, once it is there."""
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
    found = page.evaluate("[...document.querySelectorAll('#hits [role=option]')].map((hit) => hit.innerText)")
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_it_draws_itself(page: Page, folded: Path, width: int, dark: bool) -> None:
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
    assert "layer.0" in shown(page)
    assert "/encoder/layer.0/attn/Relu" not in shown(page)


def test_clicks_open_close_and_select(page: Page, folded: Path) -> None:
    page.open(folded, 1280, 800)
    block = "scene.boxes.find((box) => box.label === 'layer.0')"
    page.click(*place(page, block))
    assert {"attn", "mlp", "/encoder/layer.0/Add"} <= set(shown(page))
    page.click(*place(page, "scene.boxes.find((box) => box.label === 'attn')"))
    page.click(*place(page, RELU))
    details = text(page, "sheet")
    assert details.startswith("Relu")
    assert all(
        said in details for said in ("/encoder/layer.0/attn/Relu", "float32[batch, 16]", "Kernel", "cpu", "Time")
    )
    assert page.evaluate("decodeURIComponent(location.hash)") == "#/encoder/layer.0/attn/Relu"
    page.evaluate("document.getElementById('fold').click()")
    assert "attn" not in shown(page)
    page.evaluate("document.getElementById('unfold').click()")
    assert len(shown(page)) > 96
    for button in ("larger", "smaller", "fit", "side", "side"):
        page.evaluate(f"document.getElementById('{button}').click()")
    page.settle()


def test_searching_finds_names_ops_shapes_and_weights(page: Page, folded: Path) -> None:
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
    assert "/encoder/layer.7/attn/Relu" in shown(page)
    assert "/encoder/layer.7/attn/Relu" in text(page, "sheet")
    assert page.evaluate("document.activeElement.id") == "graph"


def test_keys_follow_lines(page: Page, folded: Path) -> None:
    page.open(folded, 1280, 800)
    page.evaluate("document.getElementById('graph').focus()")
    said = []
    for key in ("ArrowDown", "ArrowDown", "Enter", "ArrowDown", "ArrowUp"):
        page.press(key)
        said.append(text(page, "said"))
    assert said[0].startswith("input x, float32")
    assert said[1] == "layer.0, 8 nodes, closed"
    assert said[2] == "layer.0, 8 nodes, open"
    assert page.evaluate("document.activeElement.id") == "graph"
    for key in ("+", "-", "f", "Escape"):
        page.press(key)
    assert "Choose a box" in text(page, "sheet")
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "find"


def test_fingers_tap_drag_and_pinch(page: Page, folded: Path) -> None:
    page.open(folded, 390, 844, touch=True)
    assert page.evaluate("document.querySelector('main').classList.contains('alone')")
    page.tap(*place(page, "scene.boxes.find((box) => box.label === 'layer.0')"))
    assert "attn" in shown(page)
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


def test_lists_colours_and_pointing(page: Page, folded: Path) -> None:
    page.open(folded, 1280, 800)
    for mode in page.evaluate("[...document.getElementById('colour').options].map((option) => option.value)"):
        page.evaluate(
            f"(() => {{ const c = document.getElementById('colour'); c.value = '{mode}';"
            "c.dispatchEvent(new Event('change')); })()"
        )
        page.settle()
        assert text(page, "legend")
    page.move(*place(page, "scene.boxes.find((box) => box.label === 'layer.0')"))
    assert "8 nodes: " in text(page, "tip")
    page.evaluate("document.getElementById('tab-kernels').click()")
    assert "the slowest first" in text(page, "sheet")
    page.evaluate("document.querySelector('#sheet .item').click()")
    page.evaluate("document.getElementById('tab-weights').click()")
    assert "float32[16, 16]" in text(page, "sheet")
    assert page.evaluate("document.querySelectorAll('#sheet svg.histogram').length") == 12
    page.evaluate("document.getElementById('tab-model').click()")
    assert all(said in text(page, "sheet") for said in ("96", "One run", "Inputs", "float32[batch, 16]"))


def test_an_address_leads_to_a_node(page: Page, folded: Path) -> None:
    page.open(folded, 1280, 800)
    page.evaluate("void (location.hash = encodeURIComponent('/encoder/layer.5/mlp/Mul'))")
    page.settle()
    assert "/encoder/layer.5/mlp/Mul" in text(page, "sheet")


def test_the_picture_is_saved_as_svg(page: Page, tmp_path: Path) -> None:
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
def test_whatever_can_be_read_is_shown(page: Page, tmp_path: Path, kind: str) -> None:
    page.open(write(tmp_path, getattr(view_models, kind)()), 1280, 800)
    page.evaluate("document.getElementById('unfold').click()")
    page.settle()
    names = shown(page)
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
            assert {"lonely", "again", "round", "about", "missing", "nobody"} <= set(names)
            assert search(page, "nobody") == ["nobody\nnobody gives this"]
        case "hostile":
            assert view_models.HOSTILE in problem
            page.evaluate("document.getElementById('tab-weights').click()")
            assert "2 elements not finite" in text(page, "sheet")
    assert bool(problem) == (kind in ("unknown", "invalid", "hostile"))


def test_names_cannot_leave_their_place() -> None:
    content = view_page(view_models.hostile(), device="cpu")
    assert "<img" not in content
    assert content.count("</script>") == 2
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', content)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.search(r'(src|href)="', content)


def test_two_thousand_nodes_are_folded_and_drawn(page: Page, tmp_path: Path) -> None:
    page.open(write(tmp_path, view_models.blocks(250)), 1280, 800)
    assert page.evaluate("scene.nodes.length") == 2000
    assert len(shown(page)) < 100
    paints = "performance.getEntriesByType('paint').map((paint) => [paint.name, Math.round(paint.startTime)])"
    drawn = "Math.round(performance.getEntriesByName('weft-drawn')[0].startTime)"
    print("milliseconds:", page.evaluate(paints), "drawn", page.evaluate(drawn))
    page.evaluate("document.getElementById('unfold').click()")
    page.settle()
    assert len(shown(page)) > 2000


def test_a_profile_of_another_run_is_shown(tmp_path: Path) -> None:
    content = view_models.blocks(1)
    loaded = weft.load(content, device="cpu", cache=False)
    loaded.profile(repeat=1).save(tmp_path / "profile.json")
    found = re.search(r'id="data">(.*?)</script>', view_page(content, profile=tmp_path / "profile.json"))
    assert found is not None
    data = json.loads(found[1])
    assert data["run"]["runs"] == 1
    assert sum(work["share"] for work in data["works"]) == pytest.approx(1)
    assert all(work["device"] == "cpu" and work["template"] for work in data["works"])
    (tmp_path / "other.json").write_text('{"kernels": 3}')
    with pytest.raises(InputError, match=r"other.json is no profile"):
        view_page(content, profile=tmp_path / "other.json")


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(InvalidModelError, match="web page"):
        view_page(b"<!doctype html><html><body>not found</body></html>")
