"""Log lines for compiled and loaded models, formatted only if they are logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.logs import COMPILING, INFO, LOADING
from weft.quantities import format_bytes, format_plural

if TYPE_CHECKING:
    from weft.ir.compiled import CompiledProgram
    from weft.runtime.model import Model

MOST_STEPS = 8  # host steps that a line lists


def log_compiled(file: str, device: str, program: CompiledProgram, precision: str, seconds: float) -> None:
    """Log a compilation: its time, kernels, host steps and rounded products."""
    if not COMPILING.is_enabled_for(INFO):
        return
    from weft.runtime.explain import explain, narrowed_products

    kernels = format_plural(len(program.objects), "kernel")
    COMPILING.info("%s: compiled for %s in %.2f s: %s", file, device, seconds, kernels)
    steps, narrowed = explain(program), narrowed_products(program)
    if steps:
        listed = "; ".join(dict.fromkeys(f"{step.node}: {step.reason}" for step in steps[:MOST_STEPS]))
        COMPILING.info("%s: %s left to the host: %s", file, format_plural(len(steps), "step"), listed)
    if narrowed:
        COMPILING.info(
            "%s: with precision=%s, the operands of %s are rounded",
            file,
            precision,
            format_plural(len(narrowed), "product"),
        )


def log_loaded(model: Model, size: int, seconds: float) -> None:
    """Log a load."""
    if LOADING.is_enabled_for(INFO):
        opsets = ", ".join(f"{domain} {version}" for domain, version in model.metadata.opsets.items()) or "unknown"
        details = (model.file, seconds, model.device, format_bytes(size), opsets)
        LOADING.info("%s: loaded in %.2f s on %s: %s, opset %s", *details)
