"""These tests run on Mesa's software adapter; where it is missing they are left out, and say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from backends.webgpu.software import leave_out


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_out(items, Path(__file__).parent)
