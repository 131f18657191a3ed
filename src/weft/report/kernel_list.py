"""`model.kernels`: the kernels of a model with their nodes, templates, costs and code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, overload

from weft.backends.device import CompilingDriver, Listing
from weft.backends.naming import with_unique_names
from weft.errors import DeviceError
from weft.ir.kernel import Kernel
from weft.ir.work import HostSection, Launch, NativeSection, ScanTask, Section, Task
from weft.plan.usual_sizes import likely_sizes
from weft.quantities import format_bytes, format_count, format_plural, join_few, shorten
from weft.records import dataclass
from weft.report.fusion import evaluate_dim
from weft.tables import ShownAsTables, Table

if TYPE_CHECKING:
    from weft.compiler import Pipeline

UNKNOWN = "–"


@dataclass(frozen=True, slots=True, eq=False)
class ModelKernel:
    """A kernel of a model.

    name: unique within the model.
    template: what built it; reason: why this template was chosen.
    nodes: the ONNX nodes that it computes.
    launches: how often a run launches it; bodies of control flow count once.
    flops, bytes: lower bounds of the arithmetic and memory traffic of all launches; None where they depend on data.
    lanes: threads, or elements of vectors, in a block.
    """

    name: str
    template: str
    reason: str
    nodes: tuple[str, ...]
    launches: int
    flops: int | None
    bytes: int | None
    lanes: int
    _kernel: Kernel = field(repr=False)
    _driver: CompilingDriver = field(repr=False)

    def __repr__(self) -> str:
        nodes = join_few(map(shorten, self.nodes), 2)
        return f"<weft.ModelKernel {self.name}: {self.template} for {nodes}, {format_plural(self.launches, 'launch')}>"

    @property
    def ir(self) -> str:
        """The kernel in weft's own form, which is the same for all devices (docs/kernels.md)."""
        return str(self._kernel)

    @property
    def code(self) -> dict[str, str]:
        """The code for the device, by language: LLVM IR and assembly, PTX, or WGSL."""
        return {listing.title: listing.text for listing in self.listings()}

    def listings(self) -> Sequence[Listing]:
        """The code by the language names that syntax highlighters use."""
        return self._driver.listings(self._kernel)


class KernelList(Sequence[ModelKernel], ShownAsTables):
    """The kernels of a model for a device, in the order of their first launch; `sizes` are those of the costs."""

    def __init__(self, file: str, device: str, kernels: Sequence[ModelKernel], sizes: Mapping[str, int]) -> None:
        self.file = file
        self.device = device
        self.sizes = dict(sizes)
        self._kernels = tuple(kernels)

    @overload
    def __getitem__(self, index: int) -> ModelKernel: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ModelKernel]: ...
    def __getitem__(self, index: int | slice) -> ModelKernel | Sequence[ModelKernel]:
        return self._kernels[index]

    def __len__(self) -> int:
        return len(self._kernels)

    def __repr__(self) -> str:
        return f"<{format_plural(len(self), 'kernel')} of {shorten(self.file)} for {self.device}>"

    def _tables(self) -> Iterator[Table]:
        rows = [
            (
                kernel.name,
                kernel.template,
                join_few(map(shorten, kernel.nodes), 2),
                kernel.launches,
                UNKNOWN if kernel.flops is None else format_count(kernel.flops),
                UNKNOWN if kernel.bytes is None else format_bytes(kernel.bytes),
            )
            for kernel in self
        ]
        columns = ("kernel", "template", "nodes", "launches", "FLOPs", "bytes")
        sizes = ", ".join(f"{shorten(name)} = {size}" for name, size in self.sizes.items())
        note = f"FLOPs and bytes for {sizes}." if sizes else ""
        yield Table(rows, columns, title=repr(self)[1:-1], right=columns[3:], note=note)


def list_kernels(pipeline: Pipeline, sizes: Mapping[str, int]) -> KernelList:
    """Build a model's kernels, with costs for these sizes of dynamic dims and typical sizes of the others."""
    driver = pipeline.driver
    if not isinstance(driver, CompilingDriver):
        problem, hint = f"device {driver.name!r} builds no kernels", "name one that compiles: see weft devices"
        raise DeviceError(problem, file=pipeline.file, hint=hint)
    driver.check_precision(pipeline.precision)
    program = pipeline.program()
    sections = with_unique_names(pipeline.build(pipeline.fuse(program)))
    all_sizes = likely_sizes(program.inputs, program.guards, sizes)
    launches: dict[str, list[tuple[Task | None, Launch]]] = {}
    for task, launch in _walk_launches(sections):
        launches.setdefault(launch.kernel.name, []).append((task, launch))
    kernels = [_describe_kernel(uses, all_sizes, driver) for uses in launches.values()]
    return KernelList(pipeline.file, driver.name, kernels, all_sizes)


def _describe_kernel(
    uses: Sequence[tuple[Task | None, Launch]], sizes: Mapping[str, int], driver: CompilingDriver
) -> ModelKernel:
    kernel = uses[0][1].kernel
    tasks = list({id(task): task for task, _ in uses if task is not None}.values())
    return ModelKernel(
        name=kernel.name,
        template=tasks[0].template if tasks else "carry",
        reason=tasks[0].reason if tasks else "copies the state of a scan from one iteration to the next",
        nodes=tuple(dict.fromkeys(task.origin for task in tasks)),
        launches=len(uses),
        flops=_sum_shares([(task, evaluate_dim(task.effort.flops, sizes)) for task in tasks]),
        bytes=_sum_shares([(task, evaluate_dim(task.effort.bytes, sizes)) for task in tasks]),
        lanes=kernel.lanes,
        _kernel=kernel,
        _driver=driver,
    )


def _sum_shares(amounts: Sequence[tuple[Task, int | None]]) -> int | None:
    """Sum the cost per launch: the launches of a task share its cost evenly."""
    costs = [amount // len(task.work.launches) for task, amount in amounts if amount is not None]
    return sum(costs) if len(costs) == len(amounts) else None


def _walk_launches(sections: Sequence[Section]) -> Iterator[tuple[Task | None, Launch]]:
    for section in sections:
        match section:
            case NativeSection(tasks):
                for task in tasks:
                    if isinstance(task, ScanTask):
                        yield from _walk_launches((task.body,))
                        yield from ((None, launch) for work in task.copies for launch in work.launches)
                    else:
                        yield from ((task, launch) for launch in task.work.launches)
            case HostSection(_, bodies):
                for body in bodies:
                    yield from _walk_launches(body)
