"""What `importlib.metadata` finds under the name onnxruntime where only weft is installed: packages look for it."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from weft.compat.installation import API_LEVEL, REPLACED

_METADATA = f"""Metadata-Version: 2.1
Name: {REPLACED}
Version: {API_LEVEL}
Summary: weft, with the interface of onnxruntime
"""


class StandIn(Distribution):
    """A distribution without files."""

    def read_text(self, filename: str) -> str | None:
        return _METADATA if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path
