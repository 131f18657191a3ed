"""A model -> a C library: header, object file, weights, an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.backends.cpu.machine import Machine
from weft.backends.cpu.targets import cpu_target, driver_for
from weft.backends.device import NATIVE
from weft.backends.llvm import assembly as ir
from weft.backends.llvm.compilation import compile_module
from weft.backends.llvm.emit import emit
from weft.backends.llvm.vector_lanes import VECTOR_LANES
from weft.backends.naming import named
from weft.errors import InputError, UnsupportedModelError, WeftError
from weft.export.archive import archive
from weft.export.arithmetic import CHECKED
from weft.export.driver import driver_text
from weft.export.header import example_text, header_text
from weft.export.interface import Interface, c_name, check_tensors, make_interface
from weft.export.library import DECLARATIONS, library_text
from weft.export.units import Unit, UnitBuilder
from weft.export.weights import Weights, gather
from weft.ir.kernel import Kernel
from weft.ir.types import TensorType
from weft.ir.work import all_works
from weft.loading import open_pipeline
from weft.plan.usual_sizes import usual_sizes
from weft.records import dataclass
from weft.runtime.devices import HOST
from weft.runtime.options import LoadOptions

MOST_EMBEDDED = 1 << 28
"""Bytes of weights in an object file: LLVM takes fifteen times that to write it."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: the files, and what a C program sees."""

    header: Path
    object: Path
    library: Path | None
    weights: Path | None
    example: Path
    interface: Interface
    weight_bytes: int


def export_c(
    source: Any,
    folder: str | Path,
    *,
    name: str | None = None,
    target: str = NATIVE,
    precision: str = "float32",
    shapes: Mapping[str, int] | None = None,
    embed: bool = False,
) -> Exported:
    """Write a model as a C library into a folder, which is made where there is none.

    name: what files and functions are called (default: as the model's file). target: the processor that the code is
    for. shapes: sizes of dynamic dims, which are fixed then. embed: put the weights into the object file.
    """
    folder = Path(folder)
    machine = cpu_target(target)
    called = c_name(name or (Path(source).stem if isinstance(source, (str, Path)) else "model"))
    if name is not None and called != name:
        raise InputError(f"{name!r} is no name for functions of C", hint=f"for instance {called}")
    pipeline = open_pipeline(source, LoadOptions(device=HOST, precision=precision, cache=False))
    driver = driver_for(machine)
    try:
        graph = pipeline.read().graph
        program = pipeline.specialise(_fixed_shapes(graph.inputs, shapes or {}), ())
        inputs = [(value.name, value) for value in program.inputs]
        outputs = [(declared.name, value) for declared, value in zip(graph.outputs, program.outputs)]
        check_tensors((*inputs, *outputs))
        sections = named(pipeline.build(pipeline.fuse(program, driver), driver))
        usual = next(iter(usual_sizes(program.inputs, program.guards, {})), {})
        whole = UnitBuilder(program.inputs, usual).build(program, sections, {})
    except WeftError as error:
        raise error.at(file=pipeline.file) from error.__cause__
    units = list(whole.everything())
    inner = [guard for unit in units[1:] for guard in unit.guards]
    interface = make_interface(called, inputs, outputs, whole.guards, inner)
    weights = gather(units)
    if embed and weights.length > MOST_EMBEDDED:
        raise UnsupportedModelError(
            f"{weights.length:,} bytes of weights are too many for an object file", hint="leave out --embed"
        )
    kernels = _kernels(units)
    code = compile_module(module_text(whole, kernels, interface, weights, embed=embed), machine)
    folder.mkdir(parents=True, exist_ok=True)
    return _write_files(
        folder, interface, code, machine, pipeline.file, precision, weights, embed, _local_bytes(kernels)
    )


def module_text(
    whole: Unit,
    kernels: Sequence[Kernel],
    interface: Interface,
    weights: Weights,
    *,
    embed: bool,
) -> str:
    """All code of a model, as one module of LLVM."""
    module = ir.Module(name="weft")
    for kernel in kernels:
        emit(kernel, module, VECTOR_LANES).linkage = "internal"
    driver = driver_text(interface, whole, weights)
    content = b"".join(weights.pieces()) if embed else None
    library = library_text(interface, weights.length, weights.checksum, content)
    known = module.globals.keys()
    declared = [line for symbol, line in {**DECLARATIONS, **CHECKED}.items() if symbol not in known]
    return "\n".join((str(module), *declared, library, driver))


def _kernels(units: Sequence[Unit]) -> list[Kernel]:
    works = [work for unit in units for section in unit.sections for work in all_works(section)]
    return list({launch.kernel.name: launch.kernel for work in works for launch in work.launches}.values())


def _local_bytes(kernels: Sequence[Kernel]) -> int:
    """What kernels need on the stack for their local buffers, at most."""
    local = [[b for b in kernel.buffers if b.local_size is not None] for kernel in kernels]
    return max((sum((b.local_size or 0) * b.dtype.numpy.itemsize for b in buffers) for buffers in local), default=0)


def _fixed_shapes(inputs: Sequence[Any], sizes: Mapping[str, int]) -> dict[str, list[int | None]] | None:
    """Shapes of inputs in which dims have the sizes given for their names, or for where they stand (input.axis)."""
    found: dict[str, list[int | None]] = {}
    unused = dict(sizes)
    known: dict[str, None] = {}
    for value in inputs:
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        fixed: list[int | None] = []
        for axis, dim in enumerate(shape or ()):
            names = (f"{value.name}.{axis}", str(dim)) if not isinstance(dim, int) else ()
            known.update(dict.fromkeys(names[1:]))
            name = next((name for name in names if name in sizes), None)
            if name is not None:
                unused.pop(name, None)
            fixed.append(dim if isinstance(dim, int) else None if name is None else sizes[name])
        if fixed:
            found[value.name] = fixed
    for name in unused:
        hint = f"the dynamic dims are {', '.join(known)}" if known else "all dims of this model are fixed"
        raise InputError(f"--shape {name}: the inputs have no dynamic dim of that name", hint=hint)
    return found if sizes else None


def _write_files(
    folder: Path,
    interface: Interface,
    code: bytes,
    machine: Machine,
    file: str | None,
    precision: str,
    weights: Weights,
    embed: bool,
    stack: int,
) -> Exported:
    name = interface.name
    files = Exported(
        folder / f"{name}.h",
        folder / f"{name}.o",
        folder / f"lib{name}.a" if "linux" in machine.triple else None,
        None if embed else folder / f"{name}.weights",
        folder / f"{name}_example.c",
        interface,
        weights.length,
    )
    given = "" if embed else f" {name}.weights"
    facts = [
        f"Code for {machine.processor} ({machine.triple}), precision {precision}.",
        f"Weights: {weights.length:,} bytes, {'in the object' if embed else f'in {name}.weights'}.",
        f"Stack: kernels need {stack:,} bytes for themselves, on each thread that runs blocks.",
        "",
        f"Build a program:    cc -O2 {name}_example.c {name}.o -o {name}_example",
        f"Run it:             ./{name}_example{given} SIZES... INPUT.raw...",
        "",
        f"Written by weft from {Path(file).name if file else 'a model in memory'}.",
    ]
    files.header.write_text(header_text(interface, f"{name}: a model as a C library", facts, embed))
    files.example.write_text(example_text(interface, embed))
    files.object.write_bytes(code)
    if files.weights is not None:
        weights.write(files.weights)
    if files.library is not None:
        symbols = [f"{name}_{verb}" for verb in FUNCTIONS]
        files.library.write_bytes(archive(f"{name}.o", code, symbols))
    return files


FUNCTIONS = (
    "open",
    "bind",
    "close",
    "check",
    "workspace_bytes",
    "output_shapes",
    "run",
    "run_parallel",
    "error_text",
)
