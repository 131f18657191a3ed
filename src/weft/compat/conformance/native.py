"""Models that are native code throughout, but for steps that only make sense on the host."""

from __future__ import annotations

from typing import Any

from weft.errors import UnsupportedModelError
from weft.loading import load


def load_native(source: Any, device: str) -> Any:
    """The model, loaded; an error where a step of it has no kernel on the device."""
    model = load(source, device=device)
    lacking = [found for found in model.explain() if not found.by_nature]
    if lacking:
        steps = "; ".join(f"{found.node}: {found.reason}" for found in lacking[:3])
        raise UnsupportedModelError(f"{len(lacking)} steps without a kernel: {steps}")
    return model
