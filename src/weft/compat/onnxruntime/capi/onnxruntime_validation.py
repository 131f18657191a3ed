"""What onnxruntime says of the package that it comes in."""

from __future__ import annotations

from weft.compat.onnxruntime.naming import API_LEVEL


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """The package, its version, and that of CUDA, which weft is not built against."""
    return "onnxruntime", API_LEVEL, ""


def check_distro_info() -> None:
    """weft runs wherever Python and LLVM do."""
