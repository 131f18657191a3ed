"""Inputs that follow from others: rates and lengths of sound, masks and places of tokens, states before a first run.

They are known by the names that exporters give them, and only where real data is given for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.types import OptionalType
from weft.readers.content import Kind

RATES = (8000, 16000)  # that models of speech take
SOUNDS = ("waveform", "audio", "sound", "speech", "wav", "pcm", "signal", "input", "x")
RATE = re.compile(r"(sr|fs|rate|sampl(e|ing)_?rate)", re.IGNORECASE)
LENGTH = re.compile(r"(.*[_.])?(len|lens|length|lengths)(:\d+)?", re.IGNORECASE)
MASK = re.compile(r".*(attention_|padding_|input_)?mask(:\d+)?", re.IGNORECASE)
SEGMENT = re.compile(r"(token_type|segment)_ids(:\d+)?", re.IGNORECASE)
POSITION = re.compile(r"position_ids(:\d+)?", re.IGNORECASE)
STATE = re.compile(
    r"(.*[_.])?(state|states|hidden|cell|cache|memory|mem|past|past_key_values?|h0|c0|h_in|c_in|hx|cx)\d*([_.].*)?"
    r"|h|c|h_.*_in|.*_cache_?\d*|in_cache\d*",
    re.IGNORECASE,
)


def is_rate(spec: TensorSpec) -> bool:
    """Whether an input is the rate of the sound in another one."""
    return bool(RATE.fullmatch(spec.name)) and spec.element is not None and _is_single(spec)


def is_companion(spec: TensorSpec) -> bool:
    """Whether an input says something of the others, or is a state: people give data for the rest."""
    if isinstance(spec.type, OptionalType) or is_rate(spec):
        return True
    return any(form.fullmatch(spec.name) for form in (LENGTH, MASK, SEGMENT, POSITION, STATE))


def main_inputs(specs: Sequence[TensorSpec], kind: Kind) -> list[TensorSpec]:
    """The inputs that a file of that kind can be for, where nobody says it."""
    found = [spec for spec in specs if not is_companion(spec)] or list(specs)
    if len(found) > 1 and kind in (Kind.PICTURE, Kind.FOLDER):
        return [spec for spec in found if spec.shape is not None and len(spec.shape) in (3, 4)] or found
    if len(found) > 1 and kind is Kind.WAV:
        return [spec for spec in found if _suits_sound(spec)] or found
    return found


def _suits_sound(spec: TensorSpec) -> bool:
    rank = spec.shape is not None and len(spec.shape) <= 3
    return rank and any(word in spec.name.lower() for word in SOUNDS)


def rate_for(specs: Sequence[TensorSpec], own: int, properties: Mapping[str, str]) -> int | None:
    """The rate that a model wants sound in, which has its own: None where nothing says it."""
    if any(is_rate(spec) for spec in specs):
        return own if own in RATES else RATES[-1]
    said = next((properties[key] for key in ("sample_rate", "sampling_rate", "sr") if key in properties), "")
    return int(said) if said.isdecimal() and len(said) < 8 and int(said) else None


def companion(
    spec: TensorSpec, given: Mapping[str, Array], sizes: Mapping[str, int], rate: int | None
) -> tuple[Array, str] | None:
    """What an input that nobody gave must be, and why; None where that cannot be said."""
    element, shape = spec.element, spec.shape
    if element is None or shape is None or element is DType.string:
        return None
    main = max(given.values(), key=lambda array: array.size, default=None)
    extents = tuple(dim if isinstance(dim, int) else _size(dim, sizes) for dim in shape)
    if is_rate(spec):
        return np.full(extents, rate or RATES[-1], element.numpy), "the rate of the sound"
    if LENGTH.fullmatch(spec.name) and main is not None and main.ndim and not element.is_float and len(shape) <= 1:
        return np.full(extents, main.shape[-1], element.numpy), "the length of the other input"
    if POSITION.fullmatch(spec.name) and len(extents) == 2:
        return np.broadcast_to(np.arange(extents[1]), extents).astype(element.numpy), "places from 0 on"
    if MASK.fullmatch(spec.name):
        return np.ones(extents, element.numpy), "nothing is masked"
    if SEGMENT.fullmatch(spec.name):
        return np.zeros(extents, element.numpy), "one segment"
    if STATE.fullmatch(spec.name):
        return np.zeros(extents, element.numpy), "the state before a first run"
    return None


def _size(dim: str, sizes: Mapping[str, int]) -> int:
    """What is past of a first run is nothing."""
    return sizes.get(dim, 0 if dim.lower().startswith("past") else 1)


def _is_single(spec: TensorSpec) -> bool:
    return (
        spec.shape is not None and all(dim == 1 or isinstance(dim, str) for dim in spec.shape) and len(spec.shape) < 2
    )
