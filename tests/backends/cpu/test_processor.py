"""The names of this machine's processor, and a cache folder that cannot be looked into."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.backends.cpu import processor
from weft.cache.files import VARIABLE


def test_a_folder_that_cannot_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that root made for itself in an image that somebody else runs."""

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    monkeypatch.delitem(processor.sys.modules, "llvmlite", raising=False)
    monkeypatch.setenv(VARIABLE, "/another/users")
    assert processor.known_processor()
