"""A profile as a file: a page, data or a trace, by what the file's name ends with."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from weft.errors import InputError, short_repr
from weft.report.page import profile_page
from weft.report.trace import trace_json
from weft.runtime.profile import Profile


def save_profile(profile: Profile, path: str | PathLike[str]) -> None:
    """Write it in the format that the name of the file asks for; folders are made where there are none."""
    try:
        place = Path(path)
    except TypeError as error:
        raise InputError(f"a path to save to, not a {type(path).__name__}", file=profile.file) from error
    make = next((make for ending, make in FORMATS.items() if place.name.lower().endswith(ending)), None)
    if make is None:
        hint = "end it with .html for a page, .json for data, or .trace for Perfetto and Chrome's tracing"
        raise InputError(f"a profile is not saved as {short_repr(place.name)}", file=profile.file, hint=hint)
    text = make(profile)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8", errors="backslashreplace")  # names may be of other encodings
    except (OSError, ValueError) as error:  # no such place, no right to write there, or no name of a file
        raise InputError(
            f"the profile cannot be written to {short_repr(str(place))}: {error}", file=profile.file
        ) from error


def profile_json(profile: Profile) -> str:
    """All of it, for programs."""
    return json.dumps(_finite(profile_data(profile)), indent=2, allow_nan=False)


def profile_data(profile: Profile) -> dict[str, Any]:
    """A profile as plain data."""
    kernels = [
        {
            **asdict(kernel),
            "flops_per_second": kernel.flops_per_second,
            "bytes_per_second": kernel.bytes_per_second,
        }
        for kernel in profile.kernels
    ]
    peak = profile.peak_memory
    return {
        **asdict(profile),
        "kernels": kernels,
        "seconds": profile.seconds,
        "peak_memory": None if peak is None else asdict(peak),
    }


def _finite(data: Any) -> Any:
    """What JSON can say; NaN and infinities are null."""
    match data:
        case dict():
            return {str(key): _finite(content) for key, content in data.items()}
        case list() | tuple():
            return [_finite(content) for content in data]
        case float():
            return data if math.isfinite(data) else None
    return data


def _page(profile: Profile) -> str:
    return profile_page(profile, profile.ops)


def _trace(profile: Profile) -> str:
    return trace_json(profile, profile.ops)


FORMATS = {".html": _page, ".htm": _page, ".trace": _trace, ".trace.json": _trace, ".json": profile_json}
"""By the end of a file's name, the longer ones first."""
