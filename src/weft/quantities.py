"""Format numbers, sizes and names for messages and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_NAME = 60  # characters
MAX_ITEMS = 4  # of a list on one line
ELLIPSIS = "…"


def format_count(number: float, unit: str = "") -> str:
    """12345678 -> 12.3 M, in powers of 1000."""
    return _format_scaled(number, 1000, ("", "k", "M", "G", "T", "P"), unit)


def format_bytes(number: float) -> str:
    """12345678 -> 11.8 MiB, in powers of 1024."""
    return _format_scaled(number, 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi"), "B")


def format_seconds(seconds: float) -> str:
    """0.0123 -> 12.3 ms."""
    for scale, unit in ((1e-6, "ns"), (1e-3, "µs"), (1.0, "ms")):
        if seconds < scale:
            return f"{seconds / scale * 1000:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def format_plural(number: int, noun: str) -> str:
    """1 kernel, 2 kernels, 3 launches."""
    plural = f"{noun}{'es' if noun.endswith(('ch', 'sh', 's', 'x')) else 's'}"
    return f"{number:,} {noun if number == 1 else plural}"


def escape_unprintable(text: str) -> str:
    """Escape control characters and broken Unicode, so that text from a file cannot affect a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten(text: str, longest: int = MAX_NAME) -> str:
    """Fit a text on one line: escape it, and cut the middle of a long one, since names differ at their ends."""
    if len(text) > 4 * longest:
        text = f"{text[: 2 * longest]}{ELLIPSIS}{text[-2 * longest :]}"
    text = escape_unprintable(text)
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 2
    return f"{text[: longest - 1 - tail]}{ELLIPSIS}{text[len(text) - tail :]}"


def join_few(texts: Iterable[str], most: int = MAX_ITEMS, separator: str = ", ") -> str:
    """Join the first items, and say how many more there are."""
    items = list(texts)
    if len(items) > most + 1:
        items = [*items[:most], f"{ELLIPSIS} {len(items) - most} more"]
    return separator.join(items)


def format_shape(shape: Sequence[object] | None, most: int = 8) -> str:
    """[batch, 3, 224, 224], or [...] where the rank is unknown."""
    if shape is None:
        return "[...]"
    return f"[{join_few((shorten(str(dim), 24) for dim in shape), most)}]"


def _format_scaled(number: float, step: int, prefixes: Sequence[str], unit: str) -> str:
    power = 0
    scaled = float(number)
    while abs(scaled) >= step and power + 1 < len(prefixes):
        scaled /= step
        power += 1
    digits = f"{scaled:.0f}" if power == 0 or abs(scaled) >= 100 else f"{scaled:.3g}"
    return f"{digits} {prefixes[power]}{unit}".rstrip()
