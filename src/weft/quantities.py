"""Numbers and names as people read them: in units, shortened, and without characters that do something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LONGEST = 60  # characters of a name
MOST = 4  # of several things on one line
MORE = "…"


def format_count(number: float, unit: str = "") -> str:
    """12345678 -> 12.3 M, with thousands as steps."""
    return _scaled(number, 1000, ("", "k", "M", "G", "T", "P"), unit)


def format_bytes(number: float) -> str:
    """12345678 -> 11.8 MiB, with 1024 as step."""
    return _scaled(number, 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi"), "B")


def format_seconds(seconds: float) -> str:
    """0.0123 -> 12.3 ms."""
    for scale, unit in ((1e-6, "ns"), (1e-3, "µs"), (1.0, "ms")):
        if seconds < scale:
            return f"{seconds / scale * 1000:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def counted(number: int, thing: str) -> str:
    """1 kernel, 2 kernels."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Text from a file, with control characters and broken Unicode spelled out so that they do nothing."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, longest: int = LONGEST) -> str:
    """A printable text on one line: of a long one, its beginning and its end, where names differ."""
    if len(text) > 4 * longest:
        text = f"{text[: 2 * longest]}{MORE}{text[-2 * longest :]}"
    text = printable(text)
    if len(text) <= longest:
        return text
    behind = (longest - 1) // 2
    return f"{text[: longest - 1 - behind]}{MORE}{text[len(text) - behind :]}"


def few(texts: Iterable[str], most: int = MOST, separator: str = ", ") -> str:
    """The first of several, and how many more there are."""
    found = list(texts)
    shown = found if len(found) <= most + 1 else [*found[:most], f"{MORE} {len(found) - most} more"]
    return separator.join(shown)


def shape_text(shape: Sequence[object] | None, most: int = 8) -> str:
    """[batch, 3, 224, 224], or [...] where the rank is unknown; of many dims the first, and how many there are."""
    if shape is None:
        return "[...]"
    return f"[{few((shortened(str(dim), 24) for dim in shape), most)}]"


def _scaled(number: float, step: int, prefixes: Sequence[str], unit: str) -> str:
    power = 0
    scaled = float(number)
    while abs(scaled) >= step and power + 1 < len(prefixes):
        scaled /= step
        power += 1
    digits = f"{scaled:.0f}" if power == 0 or abs(scaled) >= 100 else f"{scaled:.3g}"
    return f"{digits} {prefixes[power]}{unit}".rstrip()
