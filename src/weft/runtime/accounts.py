"""What the log says of a model that was compiled or loaded: a line for each, put together only if somebody listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.logs import COMPILING, INFO, LOADING
from weft.quantities import counted, format_bytes

if TYPE_CHECKING:
    from weft.ir.compiled import CompiledProgram
    from weft.runtime.model import Model

NAMED = 8  # steps for the host that a line names


def tell_compiled(file: str, device: str, program: CompiledProgram, precision: str, seconds: float) -> None:
    """A program was compiled: how long that took, its kernels, what is left to the host, what is rounded."""
    if not COMPILING.hears(INFO):
        return
    from weft.runtime.explain import explain, narrowed_products

    kernels = counted(len(program.objects), "kernel")
    COMPILING.info("%s: compiled for %s in %.2f s: %s", file, device, seconds, kernels)
    steps, narrowed = explain(program), narrowed_products(program)
    if steps:
        named = "; ".join(dict.fromkeys(f"{step.node}: {step.reason}" for step in steps[:NAMED]))
        COMPILING.info("%s: %s left to the host: %s", file, counted(len(steps), "step"), named)
    if narrowed:
        COMPILING.info(
            "%s: with precision=%s, the operands of %s are rounded", file, precision, counted(len(narrowed), "product")
        )


def tell_loaded(model: Model, size: int, seconds: float) -> None:
    """A model is ready."""
    if LOADING.hears(INFO):
        opsets = ", ".join(f"{domain} {version}" for domain, version in model.metadata.opsets.items()) or "unknown"
        what = (model.file, seconds, model.device, format_bytes(size), opsets)
        LOADING.info("%s: loaded in %.2f s on %s: %s, opset %s", *what)
