"""Options for the conversion of images to inputs."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from weft.readers.images import COLOURS, RESIZES, ImageOptions

RANGES = {"0..1": (1 / 255, None, None), "0..255": (1.0, None, None), "-1..1": (1 / 255, (0.5,), (0.5,))}


def add_image_options(parser: Any) -> None:
    """Add `--scale`, `--mean`, `--std`, `--layout`, `--resize` and `--colours` to a parser or an argument group."""
    parser.add_argument(
        "--scale",
        type=scale,
        metavar="S",
        help="the factor for pixels from 0 to 255, for instance 1/255 or 1; or the range to scale them to: "
        "0..1, 0..255 or --scale=-1..1",
    )
    parser.add_argument(
        "--mean",
        type=numbers,
        metavar="M",
        help="the mean to subtract from scaled pixels: a number, or one per channel, separated by commas",
    )
    parser.add_argument(
        "--std", type=divisors, metavar="S", help="the standard deviation to divide by, in the same form"
    )
    parser.add_argument(
        "--layout", type=layout, metavar="LETTERS", help="the order of the input's dims, for instance NCHW"
    )
    parser.add_argument(
        "--resize",
        choices=RESIZES,
        help="how images get the input's size: crop takes the centre, fit pads with grey, stretch ignores the aspect "
        "ratio",
    )
    parser.add_argument("--colours", choices=COLOURS, help="the order of the channels (default rgb)")


def image_directions(args: Namespace) -> ImageOptions:
    """Return the conversion that the options ask for."""
    pixels, mean, std = args.scale or (None, None, None)
    return ImageOptions(pixels, args.mean or mean, args.std or std, args.layout, args.resize, args.colours)


def scale(text: str) -> tuple[float, tuple[float, ...] | None, tuple[float, ...] | None]:
    """Parse a number, a fraction or a range into scale, mean and standard deviation."""
    return RANGES[text] if text in RANGES else (_parse_number(text), None, None)


def numbers(text: str) -> tuple[float, ...]:
    """Parse one number, or several separated by commas."""
    return tuple(_parse_number(part) for part in text.split(","))


def divisors(text: str) -> tuple[float, ...]:
    """Parse numbers as `numbers` does, but refuse 0."""
    parsed = numbers(text)
    if 0.0 in parsed:
        raise ArgumentTypeError("cannot divide by 0")
    return parsed


def layout(text: str) -> str:
    """Parse the letters of dims: H and W, and optionally N and C."""
    letters = text.upper()
    if not {"H", "W"} <= set(letters) <= set("NCHW") or len(set(letters)) != len(letters) or "N" in letters[1:]:
        raise ArgumentTypeError(f"{text[:40]!r} must consist of N, C, H and W, each once: for instance NCHW or NHWC")
    return letters


def _parse_number(text: str) -> float:
    parsers: tuple[Callable[[str], float | Fraction], ...] = (float, Fraction)
    for parse in parsers:
        try:
            value = float(parse(text.strip()))
        except (ValueError, ZeroDivisionError, OverflowError):
            continue
        if math.isfinite(value):
            return value
    raise ArgumentTypeError(f"{text[:40]!r} is not a number")
