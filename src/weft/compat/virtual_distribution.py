"""Metadata of replaced packages where only weft is installed, because other packages check for them."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from weft.compat.installation import API_LEVEL, GENAI_API_LEVEL, ONNXRUNTIME


class VirtualDistribution(Distribution):
    """A distribution without files."""

    def __init__(self, name: str) -> None:
        version = API_LEVEL if name == ONNXRUNTIME else GENAI_API_LEVEL
        self._metadata = (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: weft, with the interface of {name}\n"
        )

    def read_text(self, filename: str) -> str | None:
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path
