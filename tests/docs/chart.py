"""Draw README's bar chart of run times as SVG, in light and dark, from the files in bench/results/.

`WEFT_WRITE_DOCS=1 pytest tests/docs/test_measured.py` writes docs/assets/speed-light.svg and speed-dark.svg.
"""

from __future__ import annotations

from collections.abc import Sequence

from docs import measured

THEMES = {  # text, faint text, weft's bar, other bars
    "light": ("#1f2328", "#59636e", "#3f51b5", "#b6bdc9"),
    "dark": ("#f0f6fc", "#9198a1", "#8c9eff", "#545d68"),
}
ENGINES = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO"}
WIDTH, LEFT, RIGHT, TOP, BAR, STEP = 640, 110, 60, 44, 22, 36


def draw_speed_chart(theme: str) -> str:
    """Draw the mean time of a run for each engine, with weft's as the unit."""
    count, means = measured.mean_run_times(tuple(ENGINES))
    bars = [("weft", 1.0), *sorted(((ENGINES[name], mean) for name, mean in means.items()), key=lambda bar: bar[1])]
    machine = measured.read(measured.TWO_THREADS)["machine"]
    caption = (
        f"Mean time of a run on {count} models, relative to weft; less is better. "
        f"{machine['cores']} cores of an {machine['processor']}, float32."
    )
    return _draw_bars(bars, caption, *THEMES[theme])


def _draw_bars(bars: Sequence[tuple[str, float]], caption: str, text: str, faint: str, own: str, other: str) -> str:
    longest = max(length for _, length in bars)
    height = TOP + STEP * len(bars)
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    font = 'font-family="system-ui, sans-serif" font-size="14"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{caption}" {font}>',
        f'<text x="0" y="20" font-size="13" fill="{faint}">{caption}</text>',
    ]
    for number, (name, length) in enumerate(bars):
        top, middle = TOP + STEP * number, TOP + STEP * number + BAR / 2 + 5
        width = (WIDTH - LEFT - RIGHT) * length / longest
        weight, fill = ("600", own) if number == 0 else ("400", other)
        label = f'y="{middle:g}" font-weight="{weight}" fill="{text}"'
        lines += [
            f'<text x="{LEFT - 10}" text-anchor="end" {label}>{name}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}" rx="3" fill="{fill}"/>',
            f'<text x="{LEFT + width + 8:.1f}" {label}>{length:.2f}×</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"
