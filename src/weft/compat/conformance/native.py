"""A loader for conformance runs that rejects models with steps for which the device lacks a kernel."""

from __future__ import annotations

from typing import Any

from weft.errors import UnsupportedModelError
from weft.loading import load


def load_native(source: Any, device: str) -> Any:
    """Load a model; raise UnsupportedModelError if a step runs on the host only because a kernel is missing."""
    model = load(source, device=device)
    missing = [step for step in model.explain() if not step.by_nature]
    if missing:
        steps = "; ".join(f"{step.node}: {step.reason}" for step in missing[:3])
        raise UnsupportedModelError(f"{len(missing)} steps without a kernel: {steps}")
    return model
