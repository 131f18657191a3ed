"""Inputs that follow from others: sampling rates, lengths, masks, token positions, initial states.

They are recognised by the names that exporters use, and derived only where the user gives data for the others.
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

RATES = (8000, 16000)  # of speech models
AUDIO_NAMES = ("waveform", "audio", "sound", "speech", "wav", "pcm", "signal", "input", "x")
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
    """Whether an input is the sampling rate of another one."""
    return bool(RATE.fullmatch(spec.name)) and spec.element is not None and _is_single(spec)


def is_derived(spec: TensorSpec) -> bool:
    """Whether an input can be derived from the others, or is an initial state."""
    if isinstance(spec.type, OptionalType) or is_rate(spec):
        return True
    return any(pattern.fullmatch(spec.name) for pattern in (LENGTH, MASK, SEGMENT, POSITION, STATE))


def main_inputs(specs: Sequence[TensorSpec], kind: Kind) -> list[TensorSpec]:
    """Return the inputs that a file of this kind can be for, if the user names none."""
    candidates = [spec for spec in specs if not is_derived(spec)] or list(specs)
    if len(candidates) > 1 and kind in (Kind.IMAGE, Kind.FOLDER):
        return [spec for spec in candidates if spec.shape is not None and len(spec.shape) in (3, 4)] or candidates
    if len(candidates) > 1 and kind is Kind.AUDIO:
        return [spec for spec in candidates if _takes_audio(spec)] or candidates
    return candidates


def _takes_audio(spec: TensorSpec) -> bool:
    has_rank = spec.shape is not None and len(spec.shape) <= 3
    return has_rank and any(word in spec.name.lower() for word in AUDIO_NAMES)


def choose_rate(specs: Sequence[TensorSpec], file_rate: int, properties: Mapping[str, str]) -> int | None:
    """Return the sampling rate that a model expects for a file; None if neither inputs nor metadata say it."""
    if any(is_rate(spec) for spec in specs):
        return file_rate if file_rate in RATES else RATES[-1]
    text = next((properties[key] for key in ("sample_rate", "sampling_rate", "sr") if key in properties), "")
    return int(text) if text.isdecimal() and len(text) < 8 and int(text) else None


def derive_input(
    spec: TensorSpec, arrays: Mapping[str, Array], sizes: Mapping[str, int], rate: int | None
) -> tuple[Array, str] | None:
    """Derive an input from the others, and say how; None if that is impossible."""
    element, shape = spec.element, spec.shape
    if element is None or shape is None or element is DType.string:
        return None
    main = max(arrays.values(), key=lambda array: array.size, default=None)
    extents = tuple(dim if isinstance(dim, int) else _dim_size(dim, sizes) for dim in shape)
    if is_rate(spec):
        return np.full(extents, rate or RATES[-1], element.numpy), "the sampling rate"
    if LENGTH.fullmatch(spec.name) and main is not None and main.ndim and not element.is_float and len(shape) <= 1:
        return np.full(extents, main.shape[-1], element.numpy), "the length of the other input"
    if POSITION.fullmatch(spec.name) and len(extents) == 2:
        return np.broadcast_to(np.arange(extents[1]), extents).astype(element.numpy), "positions from 0"
    if MASK.fullmatch(spec.name):
        return np.ones(extents, element.numpy), "nothing is masked"
    if SEGMENT.fullmatch(spec.name):
        return np.zeros(extents, element.numpy), "one segment"
    if STATE.fullmatch(spec.name):
        return np.zeros(extents, element.numpy), "initial state"
    return None


def _dim_size(dim: str, sizes: Mapping[str, int]) -> int:
    """Return the size of a dim: by default 0 for the past of a decoder, else 1."""
    return sizes.get(dim, 0 if dim.lower().startswith("past") else 1)


def _is_single(spec: TensorSpec) -> bool:
    return (
        spec.shape is not None and all(dim == 1 or isinstance(dim, str) for dim in spec.shape) and len(spec.shape) < 2
    )
