"""Package metadata for onnxruntime where only weft is installed, because packages check for onnxruntime."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from weft.compat.installation import API_LEVEL, ONNXRUNTIME

_METADATA = f"""Metadata-Version: 2.1
Name: {ONNXRUNTIME}
Version: {API_LEVEL}
Summary: weft, with the interface of onnxruntime
"""


class VirtualDistribution(Distribution):
    """A distribution without files."""

    def read_text(self, filename: str) -> str | None:
        return _METADATA if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path
