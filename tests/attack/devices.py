"""The devices that attacks run on, and why one may be missing."""

from __future__ import annotations

from functools import cache

import weft

DEVICES = ("cpu", "webgpu:0")


@cache
def missing(device: str) -> str | None:
    """Return why a device is not available, or None."""
    names = [device_info.name for device_info in weft.devices()]
    return None if device in names else f"no {device} here; scripts/setup-gpu installs one that is a program"
