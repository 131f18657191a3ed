"""Skip these tests where Mesa's software adapter is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from backends.webgpu.software import leave_out


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_out(items, Path(__file__).parent)
