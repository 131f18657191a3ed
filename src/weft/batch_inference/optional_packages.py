"""Import packages that only some users need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from weft.errors import MissingPackageError


def import_package(module: str, purpose: str, install: str | None = None) -> Any:
    """Import a module; MissingPackageError says what to install for this purpose."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        problem = f"{purpose} needs the package {package}, which is not installed"
        raise MissingPackageError(problem, hint=f"pip install {install or package}") from error
