"""Save a profile as a page, as JSON or as a trace, by the suffix of the file."""

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
    """Write a profile in the format of the file's suffix; missing folders are created."""
    try:
        file = Path(path)
    except TypeError as error:
        raise InputError(f"path must be a path to save to, not a {type(path).__name__}", file=profile.file) from error
    render = next((render for suffix, render in FORMATS.items() if file.name.lower().endswith(suffix)), None)
    if render is None:
        hint = "end it with .html for a page, .json for data, or .trace for Perfetto and Chrome's tracing"
        raise InputError(f"a profile cannot be saved as {short_repr(file.name)}", file=profile.file, hint=hint)
    text = render(profile)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", errors="backslashreplace")  # names may not be UTF-8
    except (OSError, ValueError) as error:  # missing, not writable, or not a valid name
        raise InputError(
            f"the profile cannot be written to {short_repr(str(file))}: {error}", file=profile.file
        ) from error


def profile_json(profile: Profile) -> str:
    """Return a profile as JSON."""
    return json.dumps(_replace_nonfinite(profile_data(profile)), indent=2, allow_nan=False)


def profile_data(profile: Profile) -> dict[str, Any]:
    """Return a profile as dicts and lists."""
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


def _replace_nonfinite(data: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by None."""
    match data:
        case dict():
            return {str(key): _replace_nonfinite(content) for key, content in data.items()}
        case list() | tuple():
            return [_replace_nonfinite(content) for content in data]
        case float():
            return data if math.isfinite(data) else None
    return data


def _render_page(profile: Profile) -> str:
    return profile_page(profile, profile.ops)


def _render_trace(profile: Profile) -> str:
    return trace_json(profile, profile.ops)


FORMATS = {
    ".html": _render_page,
    ".htm": _render_page,
    ".trace": _render_trace,
    ".trace.json": _render_trace,
    ".json": profile_json,
}
"""By suffix, the longer ones first."""
