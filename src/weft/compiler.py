"""The whole way of a model, on one page: file -> Graph -> TensorProgram -> passes -> Model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from weft.backends.reference.interpret import Reference
from weft.errors import DeviceError, ExecutionError, InvalidModelError, WeftError
from weft.frontend import read_model
from weft.ir.graph import Model as Source
from weft.ir.program import TensorProgram
from weft.ir.verify import verify
from weft.ops import registry
from weft.ops.lower import lower, run_eagerly
from weft.passes import PIPELINE
from weft.runtime.devices import Runner, choose, runner
from weft.runtime.progress import Stages, stages
from weft.runtime.session import Model

PRECISIONS = ("float32", "strict")


def load(
    source: Any,
    *,
    device: str = "auto",
    threads: int | None = None,
    precision: str = "float32",
    cache: bool = True,
    dump: str | Path | None = None,
) -> Model:
    """Load an ONNX model, ready to run.

    source: a path, bytes, a file object or an onnx.ModelProto.
    device: a name from `weft.devices()`, or "auto" for the best one here.
    threads: how many threads to use; None leaves it to the device. The reference device leaves it to numpy.
    precision: "float32" or "strict"; the reference device computes both alike.
    cache: whether compiled code may be kept on disk; the reference device compiles none.
    dump: a folder into which each stage is written as a numbered text file.
    """
    _check_options(threads, precision)
    chosen = choose(device)
    with stages("loading") as progress:
        progress.stage("reading")
        model = read_model(source, is_defined=is_defined)
        try:
            compile = partial(_compile, model, Path(dump) if dump is not None else None)
            program = compile(None, (), progress=progress)
        except ExecutionError as error:  # of constants, which no run could change
            where = {"file": model.file, "node": error.node, "value": error.value}
            raise InvalidModelError(error.problem, hint=error.hint, **where) from error
        except WeftError as error:
            raise error.at(file=model.file) from error.__cause__
        progress.stage("generating code")
        prepare = partial(_prepare, chosen.name, threads, cache)
        eager = partial(run_eagerly, model.graph, Reference())
        return Model(model, program, chosen.name, prepare, compile, eager)


def _prepare(device: str, threads: int | None, cache: bool, program: TensorProgram) -> Runner:
    """Make a program run on a device."""
    return runner(device)(program, threads, cache)


def is_defined(domain: str, op: str, version: int) -> bool:
    """Whether weft has a definition of its own for an op."""
    return registry.find(domain, op, version) is not None


def _compile(
    model: Source,
    dump: Path | None,
    sizes: Mapping[str, Sequence[int]] | None,
    overridden: Sequence[str],
    progress: Stages | None = None,
) -> TensorProgram:
    """Graph -> TensorProgram through all passes; for given input shapes, or for any."""
    tell: Callable[[str], None] = progress.stage if progress is not None else lambda _: None
    tell("tracing")
    evaluator = Reference()
    program = lower(
        model.graph,
        evaluator,
        sizes=sizes,
        overridden=overridden,
        progress=progress.update if progress is not None else None,
    )
    verify(program)
    _write(dump, 0, "traced", program)
    for number, apply in enumerate(PIPELINE):
        tell(apply.__name__.replace("_", " "))
        program = apply(program, evaluator)
        verify(program)
        _write(dump, number + 1, apply.__name__, program)
    return program


def _write(dump: Path | None, number: int, stage: str, program: TensorProgram) -> None:
    if dump is not None:
        dump.mkdir(parents=True, exist_ok=True)
        (dump / f"{number:02}-{stage}.txt").write_text(f"{program}\n")


def _check_options(threads: int | None, precision: str) -> None:
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise DeviceError(f"threads must be a positive number, not {threads!r}")
    if precision not in PRECISIONS:
        hint = f"use one of {', '.join(PRECISIONS)}"
        raise DeviceError(f"precision {precision!r} is not available", hint=hint)
