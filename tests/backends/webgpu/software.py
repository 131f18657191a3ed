"""Mesa's software rasteriser, on which GPU tests run; without it they are skipped with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.backends.webgpu.adapters import find_adapter
from weft.errors import DeviceError


def leave_out(items: list[pytest.Item], folder: Path) -> None:
    """Skip the tests of a folder if there is no such adapter."""
    own = [item for item in items if item.path.is_relative_to(folder)]
    missing = _missing() if own else None
    if missing is not None:
        for item in own:
            item.add_marker(pytest.mark.skip(reason=f"{missing}; scripts/setup-gpu installs it"))


def _missing() -> str | None:
    try:
        adapter = find_adapter("llvmpipe")
    except DeviceError as error:
        return error.problem
    return None if adapter.backend == "Vulkan" else "llvmpipe is here for OpenGL only"
