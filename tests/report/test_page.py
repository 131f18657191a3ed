"""The page of a profile in a real browser: contents at two widths, mouse, touch and keys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report.browser import Page

from weft.cost.roofline import Peak
from weft.report.page import MOST_SPANS, profile_page
from weft.runtime.profile import HOST, KernelProfile, LiveBytes, Profile, TensorProfile, TimeSpan

HOSTILE = '</script><img src=x onerror="window.broken=1"><!-- \u2028 & \' " 漢字'
WIDTHS = (390, 1280)
MILLI = 1e-3


def kernel(name: str, *nodes: str, seconds: float, share: float, bound: str = "arithmetic") -> KernelProfile:
    roofline = None if bound == "host" else 0.5
    return KernelProfile(name, nodes, 1, seconds, seconds, share, 2e6, 1e6, roofline, bound)


PROFILE = Profile(
    file=f"folder/{HOSTILE.replace('/', '')}.onnx",
    device="made up",
    threads=2,
    runs=(10 * MILLI, 9 * MILLI, 11 * MILLI),
    kernels=(
        kernel("convolve", "first", HOSTILE, "third", "fourth", "fifth", seconds=6 * MILLI, share=0.6),
        kernel("map", "last", seconds=3 * MILLI, share=0.3, bound="memory"),
        kernel("unique", "odd", seconds=1 * MILLI, share=0.1, bound="host"),
    ),
    spans=(
        TimeSpan(0, "convolve", 0, 0.0, 6 * MILLI),
        TimeSpan(0, "convolve", 1, 0.0, 5 * MILLI),
        TimeSpan(1, "map", 0, 6 * MILLI, 9 * MILLI),
        TimeSpan(2, "unique", HOST, 9 * MILLI, 10 * MILLI),
    ),
    occupancy=(0.9, 0.5),
    tensors=(
        TensorProfile("x", ("first",), 0, 1 << 20, 0.0, 6 * MILLI),
        TensorProfile(HOSTILE, ("last", HOSTILE), 1 << 20, 1 << 20, 5 * MILLI, 9 * MILLI),
    ),
    memory=(LiveBytes(0.0, 1 << 20, 0), LiveBytes(5 * MILLI, 2 << 20, 1), LiveBytes(9 * MILLI, 0, 1)),
    arena_bytes=2 << 20,
    machine=Peak(100e9, 10e9),
)


def write(folder: Path, profile: Profile = PROFILE) -> Path:
    file = folder / "page.html"
    file.write_text(profile_page(profile, {"first": "Conv"}), encoding="utf-8")
    return file


def test_names_are_escaped() -> None:
    text = profile_page(PROFILE)
    assert "<img" not in text.replace("&lt;img", "")
    assert text.count("</script>") == 2
    assert "\u2028" not in text.partition('id="data"')[2]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.search(r'(src|href)="', text)


def point(page: Page, canvas: str, when: float, height: float) -> tuple[float, float]:
    """Scroll to a canvas, and return the position of a moment of the run, as a fraction of it."""
    page.evaluate(f"document.getElementById('{canvas}').scrollIntoView({{block: 'center', behavior: 'instant'}})")
    page.settle()
    left, top, width = page.evaluate(
        f"(() => {{ const box = document.getElementById('{canvas}').getBoundingClientRect();"
        "return [box.left, box.top, box.width]; })()"
    )
    labels = 58 if width < 560 else 76
    return left + labels + (width - labels) * when, top + height


def tip(page: Page) -> str:
    shown = page.evaluate("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText")
    assert isinstance(shown, str)
    return shown


def names(page: Page) -> list[str]:
    names = page.evaluate("[...document.querySelectorAll('#kernels tbody strong')].map((name) => name.textContent)")
    assert isinstance(names, list)
    return names


def enter(page: Page, field: str, value: str, event: str) -> None:
    page.evaluate(f"document.getElementById('{field}').value = '{value}'")
    page.evaluate(f"document.getElementById('{field}').dispatchEvent(new Event('{event}'))")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_page_draws(page: Page, tmp_path: Path, width: int, dark: bool) -> None:
    page.open(write(tmp_path), width, 800, dark=dark, touch=width < 500)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('h1').textContent") == Path(PROFILE.file).name
    facts = page.evaluate("document.getElementById('facts').innerText")
    assert all(text in facts for text in ("10.0 ms", "made up", "2 threads, 70 % busy", "2.00 MiB"))
    legend = page.evaluate("document.getElementById('legend').innerText")
    assert all(kind in legend for kind in ("convolve", "map", "host"))
    assert names(page) == ["convolve", "map", "unique"]
    assert HOSTILE in page.evaluate("document.getElementById('kernels').textContent")
    assert "2.00 MiB, is reached in map" in page.evaluate("document.getElementById('arena-note').textContent")
    for canvas in ("timeline", "arena"):
        colors = page.evaluate(
            f"(() => {{ const c = document.getElementById('{canvas}');"
            "const pixels = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);"
            "return new Set(pixels).size; })()"
        )
        assert colors > 10, f"{canvas} is blank"
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (shade == "rgb(18, 20, 22)") == dark


def test_hovering_shows_kernel_and_tensor(page: Page, tmp_path: Path) -> None:
    page.open(write(tmp_path), 1280, 800)
    page.move(*point(page, "timeline", 0.3, 20 + 34 + 17))
    assert "convolve" in tip(page)
    assert "6.00 ms on thread 0" in tip(page)
    assert "Conv first" in tip(page)
    assert HOSTILE.replace("\u2028", "") in tip(page).replace("\n", "").replace("\u2028", "")
    assert page.evaluate("document.querySelector('tr.chosen strong').textContent") == "convolve"
    page.move(*point(page, "timeline", 0.95, 20 + 17))
    assert "1.00 ms on host" in tip(page)
    page.move(*point(page, "arena", 0.2, 380))
    assert tip(page).startswith("x")
    assert "Conv first" in tip(page)
    assert "1.00 MiB at 0" in tip(page)
    page.move(*point(page, "arena", 0.7, 200))
    assert "1.00 MiB at 1,048,576" in tip(page)
    page.move(5, 5)
    assert tip(page) == ""


def test_tapping_shows_kernel_and_tensor(page: Page, tmp_path: Path) -> None:
    page.open(write(tmp_path), 390, 844, touch=True)
    page.tap(*point(page, "timeline", 0.3, 20 + 2 * 34 + 17))
    assert "5.00 ms on thread 1" in tip(page)
    assert page.evaluate("document.getElementById('tip').getBoundingClientRect().left") >= 0
    assert page.evaluate("document.getElementById('tip').getBoundingClientRect().right") <= 390
    page.tap(*point(page, "arena", 0.2, 300))
    assert "1.00 MiB at 0" in tip(page)
    page.tap(195, 10)
    assert tip(page) == ""


def test_keys_go_from_one_to_the_next(page: Page, tmp_path: Path) -> None:
    page.open(write(tmp_path), 1280, 800)
    page.evaluate("document.getElementById('arena').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert "1.00 MiB at 1,048,576" in tip(page)
    page.press("ArrowLeft")
    assert "1.00 MiB at 0" in tip(page)
    page.press("Escape")
    assert tip(page) == ""


def test_zooming(page: Page, tmp_path: Path) -> None:
    page.open(write(tmp_path), 1280, 800)
    for _ in range(4):  # to the sixteenth around the middle, which is 5 ms
        page.evaluate("document.querySelector('[data-zoom=\"2\"]').click()")
    page.move(*point(page, "timeline", 0.9, 20 + 2 * 34 + 17))
    assert tip(page) == ""  # thread 1 was done at 5 ms
    page.move(*point(page, "timeline", 0.1, 20 + 2 * 34 + 17))
    assert "thread 1" in tip(page)
    page.evaluate("document.querySelector('[data-zoom=\"0\"]').click()")
    page.move(*point(page, "timeline", 0.1, 20 + 2 * 34 + 17))
    assert "thread 1" in tip(page)


def test_sorting_and_finding(page: Page, tmp_path: Path) -> None:
    page.open(write(tmp_path), 1280, 800)
    header = "document.querySelectorAll('#kernels th button')[{}].click()"
    page.evaluate(header.format(1))
    assert names(page) == ["unique", "map", "convolve"]
    assert page.evaluate("document.querySelectorAll('#kernels th')[1].getAttribute('aria-sort')") == "ascending"
    page.evaluate(header.format(0))
    assert names(page) == ["convolve", "map", "unique"]
    enter(page, "find", "ODD", "input")
    assert names(page) == ["unique"]
    enter(page, "find", "", "input")
    page.open(write(tmp_path), 390, 844, touch=True)
    enter(page, "order", "7", "change")
    assert names(page) == ["convolve", "unique", "map"]


def test_many_spans_and_no_memory(page: Page, tmp_path: Path) -> None:
    count = MOST_SPANS + 5
    spans = tuple(TimeSpan(1, "map", 0, 1e-7 * number, 1e-7 * number + 5e-8) for number in range(count))
    fields = {name: getattr(PROFILE, name) for name in Profile.__slots__}
    profile = Profile(**{**fields, "spans": spans, "tensors": (), "memory": (), "arena_bytes": 0})
    page.open(write(tmp_path, profile), 1280, 800)
    assert "5 of the shortest spans" in page.evaluate("document.getElementById('timeline-note').textContent")
    assert "needs no arena" in page.evaluate("document.getElementById('arena-note').textContent")
