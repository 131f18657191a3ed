"""The name of this machine's processor, and an unreadable cache folder."""

from __future__ import annotations

from pathlib import Path
from threading import get_ident

import llvmlite.binding
import pytest

from weft.backends.host import processor
from weft.backends.llvm.compilation import LLVM
from weft.cache.files import VARIABLE


def test_unreadable_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, root's folder in a container that runs as another user."""

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    monkeypatch.delitem(processor.sys.modules, "llvmlite", raising=False)
    monkeypatch.setenv(VARIABLE, "/another/users")
    assert processor.describe_processor()


def test_fork_waits_for_llvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise llvmlite's lock would stay locked in the child."""
    guarded: list[bool] = []

    def name_processor() -> str:
        guarded.append(get_ident() in LLVM._inside)
        return "generic"

    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_name", name_processor)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "empty"))
    processor.processor_names.__wrapped__()
    assert guarded == [True]
