"""Stages of a compilation as files that a person can read: numbered in their order, kernels in a folder beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weft.errors import InputError


class StageDump:
    """Writes into a folder; without one it does nothing, and texts are not even made."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._number = 0

    def restart(self) -> None:
        """Count from 0 again: the stages to come are those of another program."""
        self._number = 0

    def stage(self, name: str, text: Callable[[], object]) -> None:
        """The next stage, which prints as `text()` does."""
        self.file(f"{self._number:02}-{name}.txt", text)
        self._number += 1

    def file(self, path: str, text: Callable[[], object]) -> None:
        """A file below the folder."""
        if self.folder is None:
            return
        file = self.folder / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{str(text()).rstrip()}\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"nothing can be written to the dump folder {self.folder}: {reason}") from error
