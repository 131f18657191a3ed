"""Options that direct how pictures and sound become inputs."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from weft.readers.pictures import COLOURS, RESIZES, PictureDirections

RANGES = {"0..1": (1 / 255, None, None), "0..255": (1.0, None, None), "-1..1": (1 / 255, (0.5,), (0.5,))}


def add_image_options(parser: Any) -> None:
    """`--scale`, `--mean`, `--std`, `--layout`, `--resize` and `--colours`, for a parser or a group of one."""
    parser.add_argument(
        "--scale",
        type=scale,
        metavar="S",
        help="what pixels from 0 to 255 are multiplied by, for instance 1/255 or 1; or the range that they get: "
        "0..1, 0..255 or --scale=-1..1",
    )
    parser.add_argument(
        "--mean",
        type=numbers,
        metavar="M",
        help="what is taken off scaled pixels: a number, or one for each channel with commas",
    )
    parser.add_argument("--std", type=divisors, metavar="S", help="what is divided by then, in the same form")
    parser.add_argument(
        "--layout", type=layout, metavar="LETTERS", help="what the dims of a picture's input are, for instance NCHW"
    )
    parser.add_argument(
        "--resize",
        choices=RESIZES,
        help="how pictures get the input's size: crop cuts the middle out, fit puts grey beside them, stretch changes "
        "their proportions",
    )
    parser.add_argument("--colours", choices=COLOURS, help="the order of the channels (default rgb)")


def directions(args: Namespace) -> PictureDirections:
    """What was said."""
    pixels, mean, std = args.scale or (None, None, None)
    return PictureDirections(pixels, args.mean or mean, args.std or std, args.layout, args.resize, args.colours)


def scale(text: str) -> tuple[float, tuple[float, ...] | None, tuple[float, ...] | None]:
    """A number, a fraction or a range."""
    if text in RANGES:
        return RANGES[text]
    return _number(text), None, None


def numbers(text: str) -> tuple[float, ...]:
    """One number, or several with commas."""
    return tuple(_number(part) for part in text.split(","))


def divisors(text: str) -> tuple[float, ...]:
    """The same without 0."""
    found = numbers(text)
    if 0.0 in found:
        raise ArgumentTypeError("0 cannot be divided by")
    return found


def layout(text: str) -> str:
    """Letters of dims: H and W, and N and C where they are there."""
    letters = text.upper()
    if not {"H", "W"} <= set(letters) <= set("NCHW") or len(set(letters)) != len(letters) or "N" in letters[1:]:
        raise ArgumentTypeError(f"{text[:40]!r} is not made of N, C, H and W, each once: for instance NCHW or NHWC")
    return letters


def _number(text: str) -> float:
    read: tuple[Callable[[str], Any], ...] = (float, Fraction)
    for attempt in read:
        try:
            value = float(attempt(text.strip()))
        except (ValueError, ZeroDivisionError, OverflowError):
            continue
        if math.isfinite(value):
            return value
    raise ArgumentTypeError(f"{text[:40]!r} is not a number")
