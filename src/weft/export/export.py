"""`weft.export_c`: write a model as a C library: header, object file, weights and an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from weft.backends.cpu.targets import cpu_target, driver_for
from weft.backends.device import NATIVE
from weft.backends.host.machine import Machine
from weft.backends.llvm import assembly as ir
from weft.backends.llvm.compilation import compile_module
from weft.backends.llvm.emit import emit
from weft.backends.llvm.vector_lanes import choose_lanes
from weft.backends.naming import with_unique_names
from weft.compiler import Pipeline
from weft.errors import InputError, UnsupportedModelError, WeftError
from weft.export.archive import make_archive
from weft.export.arithmetic import CHECKED
from weft.export.driver import emit_driver
from weft.export.header import write_example, write_header
from weft.export.interface import Interface, check_tensors, make_c_name, make_interface
from weft.export.library import DECLARATIONS, emit_library
from weft.export.observed import USUAL_SIZE, extract_sizes, find_size_inputs, observed_symbols
from weft.export.units import CodeUnit, UnitBuilder
from weft.export.weights import WeightLayout, lay_out_weights
from weft.frontend.source import ModelSource
from weft.garbage import collect_rarely
from weft.ir.graph import GraphValue
from weft.ir.kernel import Kernel
from weft.ir.types import TensorType
from weft.ir.work import all_works
from weft.loading import open_pipeline
from weft.plan.usual_sizes import usual_sizes
from weft.quantities import format_bytes, shorten
from weft.records import dataclass
from weft.runtime.arguments import Shapes, whole_shapes
from weft.runtime.devices import HOST
from weft.runtime.model import Model
from weft.runtime.options import USUAL_PRECISION, LoadOptions, Precision
from weft.runtime.progress import Stages, stages

MOST_EMBEDDED = 1 << 28
"""Bytes of weights in an object file: LLVM needs fifteen times as much memory to write it."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The files of an exported model, and its C interface."""

    header: Path
    object: Path
    library: Path | None
    weights: Path | None
    example: Path
    interface: Interface
    weight_bytes: int

    def __repr__(self) -> str:
        files = [self.header, self.object, self.library, self.weights, self.example]
        names = ", ".join(path.name for path in files if path is not None)
        return f"<{shorten(str(self.header.parent))}: {names}; {format_bytes(self.weight_bytes)} of weights>"


def export_c(
    source: ModelSource | Model,
    folder: str | PathLike[str],
    *,
    name: str | None = None,
    target: str = NATIVE,
    precision: Precision = USUAL_PRECISION,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    outputs: Sequence[str] | None = None,
    embed: bool = False,
) -> Exported:
    """Write a model as a C library into a folder, which is created if needed (docs/guides/export.md).

    source: anything that `weft.load` accepts, or a loaded model, with its current weights.
    name: the prefix of files and functions (default: the name of the model's file).
    target: the processor to compile for; "native" is that of this machine.
    precision: the precision of products, as in `weft.load`.
    sizes: fixed sizes of dynamic dims, by name or by input and axis ("x.2"), or whole shapes of inputs.
    outputs: the values to compute (default: the model's outputs).
    embed: whether to store the weights in the object file.
    """
    prefix = make_c_name(name or (Path(source).stem if isinstance(source, (str, Path)) else "model"))
    if name is not None and prefix != name:
        raise InputError(f"{name!r} is not a C identifier", hint=f"for instance {prefix}")
    options = LoadOptions(device=HOST, precision=precision, outputs=outputs, recompile=True, cache=False)
    with stages("exporting") as progress, collect_rarely():
        pipeline = _open_pipeline(source, options, progress)
        return _export(
            pipeline, Path(folder), prefix, cpu_target(target), whole_shapes(sizes, pipeline.file), embed=embed
        )


def _open_pipeline(source: Any, options: LoadOptions, progress: Stages) -> Pipeline:
    if isinstance(source, Model):
        return Pipeline(source.pool.files, options, HOST, progress)
    pipeline = open_pipeline(source, options)
    pipeline.progress = progress
    return pipeline


def _export(pipeline: Pipeline, folder: Path, prefix: str, machine: Machine, sizes: Shapes, *, embed: bool) -> Exported:
    pipeline.driver = driver_for(machine)
    try:
        graph = pipeline.read().graph
        program, observed = extract_sizes(pipeline.specialise(_fixed_shapes(graph.inputs, sizes), ()))
        inputs = [(value.name, value) for value in program.inputs]
        outputs = [(declared.name, value) for declared, value in zip(graph.outputs, program.outputs)]
        check_tensors((*inputs, *outputs))
        usual = next(iter(usual_sizes(program.inputs, program.guards, {})), {})
        symbols = observed_symbols(observed)
        usual |= {symbol.name: USUAL_SIZE for symbol in symbols}
        builder = UnitBuilder(program.inputs, symbols, usual)
        programs = [program, *(sizes.program for sizes in observed)]
        sections = [with_unique_names(pipeline.build(pipeline.fuse(each))) for each in programs]
        root, *small = [builder.build(each, parts, {}) for each, parts in zip(programs, sections)]
    except WeftError as error:
        raise error.at(file=pipeline.file) from error.__cause__
    units = list(root.all_units())
    inner = [guard for unit in units[1:] for guard in unit.guards]
    interface = make_interface(prefix, inputs, outputs, root.guards, inner, symbols, find_size_inputs(observed))
    weights = lay_out_weights(units)
    if embed and weights.length > MOST_EMBEDDED:
        problem = f"{weights.length:,} bytes of weights are too many for an object file"
        raise UnsupportedModelError(problem, hint="export without --embed")
    pipeline.progress.stage("generating code")
    kernels = _find_kernels([*units, *small])
    driver = emit_driver(interface, root, weights, list(zip(small, observed)), lay_out_weights(small))
    code = compile_module(_emit_module(kernels, machine, interface, weights, driver, embed=embed), machine)
    folder.mkdir(parents=True, exist_ok=True)
    return _write_files(
        folder, interface, code, machine, pipeline.file, pipeline.precision, weights, embed, _local_bytes(kernels)
    )


def _emit_module(
    kernels: Sequence[Kernel],
    machine: Machine,
    interface: Interface,
    weights: WeightLayout,
    driver: str,
    *,
    embed: bool,
) -> str:
    """Emit all code of a model as one LLVM module."""
    module, lanes = ir.Module(name="weft"), choose_lanes(machine.target.features)
    for kernel in kernels:
        emit(kernel, module, lanes).linkage = "internal"
    content = b"".join(weights.pieces()) if embed else None
    library = emit_library(interface, weights.length, weights.checksum, content)
    declarations = [line for symbol, line in {**DECLARATIONS, **CHECKED}.items() if symbol not in module.globals]
    return "\n".join((str(module), *declarations, library, driver))


def _find_kernels(units: Sequence[CodeUnit]) -> list[Kernel]:
    works = [work for unit in units for section in unit.sections for work in all_works(section)]
    return list({launch.kernel.name: launch.kernel for work in works for launch in work.launches}.values())


def _local_bytes(kernels: Sequence[Kernel]) -> int:
    """Return the most bytes of stack that a kernel needs for its local buffers."""
    local = [[b for b in kernel.buffers if b.local_size is not None] for kernel in kernels]
    return max((sum((b.local_size or 0) * b.dtype.numpy.itemsize for b in buffers) for buffers in local), default=0)


def _fixed_shapes(inputs: Sequence[GraphValue], sizes: Shapes) -> dict[str, Sequence[int | None]] | None:
    """Return the shapes of inputs with the user's sizes, which name a dim, or an input and an axis ("x.2")."""
    shapes: dict[str, Sequence[int | None]] = {}
    used: set[str] = set()
    dynamic: dict[str, None] = {}
    for value in inputs:
        user_shape = sizes.get(value.name)
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        if isinstance(user_shape, tuple):
            if shape is not None and len(shape) != len(user_shape):
                raise InputError(f"{len(user_shape)} sizes for an input of rank {len(shape)}", value=value.name)
            shapes[value.name] = user_shape
            used.add(value.name)
            continue
        fixed: list[int | None] = []
        for axis, dim in enumerate(shape or ()):
            names = () if isinstance(dim, int) else (str(dim), f"{value.name}.{axis}")
            dynamic.update(dict.fromkeys(names[:1]))
            name = next((name for name in reversed(names) if isinstance(sizes.get(name), int)), "")
            size = sizes.get(name)
            used.add(name)
            fixed.append(dim if isinstance(dim, int) else size if isinstance(size, int) else None)
        shapes[value.name] = fixed
    for name in sizes.keys() - used:
        hint = f"the dynamic dims are {', '.join(dynamic)}" if dynamic else "all dims of this model are fixed"
        raise InputError(f"the inputs have no dynamic dim {name}", hint=hint)
    return {name: shape for name, shape in shapes.items() if shape} if sizes else None


def _write_files(
    folder: Path,
    interface: Interface,
    code: bytes,
    machine: Machine,
    file: str | None,
    precision: str,
    weights: WeightLayout,
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
    weights_argument = "" if embed else f" {name}.weights"
    facts = [
        f"Code for {machine.processor} ({machine.triple}), precision {precision}.",
        f"Weights: {weights.length:,} bytes, {'in the object' if embed else f'in {name}.weights'}.",
        f"Stack: kernels need {stack:,} bytes on each thread that runs blocks.",
        "",
        f"Build a program:    cc -O2 {name}_example.c {name}.o -lm -o {name}_example",
        f"Run it:             ./{name}_example{weights_argument} SIZES... INPUT.raw...",
        "",
        f"Written by weft from {Path(file).name if file else 'a model in memory'}.",
    ]
    files.header.write_text(write_header(interface, f"{name}: a model as a C library", facts, embed), encoding="utf-8")
    files.example.write_text(write_example(interface, embed), encoding="utf-8")
    files.object.write_bytes(code)
    if files.weights is not None:
        weights.write(files.weights)
    if files.library is not None:
        symbols = [f"{name}_{verb}" for verb in FUNCTIONS]
        files.library.write_bytes(make_archive(f"{name}.o", code, symbols))
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
