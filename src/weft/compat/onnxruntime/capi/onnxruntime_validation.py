"""onnxruntime's information about its package."""

from __future__ import annotations

from weft.compat.onnxruntime.naming import API_LEVEL


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Return the package, its version, and an empty CUDA version: weft is not built against CUDA."""
    return "onnxruntime", API_LEVEL, ""


def check_distro_info() -> None:
    """Do nothing: weft supports every platform that Python and LLVM run on."""
