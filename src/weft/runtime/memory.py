"""`model.memory()`: how much memory a model needs; and the sizes that shapes of inputs bind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from weft.errors import InputError, short_repr
from weft.ir import dims
from weft.ir.types import Type
from weft.quantities import format_bytes, join_few, shorten
from weft.records import dataclass
from weft.tables import ShownAsTables, Table

if TYPE_CHECKING:
    from weft.ir.program import Value
    from weft.plan.program import ProgramPlan

Shape = tuple[int, ...]
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_MOST_BYTES = 1 << 62
_MOST_SIZES = 8  # of dims that are shown


@dataclass(frozen=True, slots=True)
class Memory(ShownAsTables):
    """Bytes that a model needs for one run at a time.

    weights: constants, in the layout that the device reads.
    arena: all intermediate values and the workspaces of kernels, which share memory.
    workspace: additional memory of threads and of the run. On the CPU, the arena of a model with dynamic sizes is up to
        1/8 larger without a memory limit, so that larger sizes find room in it.
    inputs: the caller's arrays, which are not part of the peak.
    outputs: new arrays, including those that pass between native code and the host.
    peak: the sum of all but the inputs.
    lower_bound: the most live bytes of the arena at any step, in the chosen order.
    without_reuse: the size of the arena if no two values shared memory.
    sizes: of the dynamic dims.
    guessed: the names of dims whose sizes were not passed; these have typical sizes.
    unplanned: nodes whose sizes depend on data; they are not counted.
    state: the memory of a `weft.State`, for `model.memory(..., state=state)`.
    """

    weights: int
    arena: int
    workspace: int
    inputs: int
    outputs: int
    peak: int
    lower_bound: int
    without_reuse: int
    sizes: Mapping[str, int]
    guessed: tuple[str, ...]
    unplanned: tuple[str, ...]
    state: int = 0

    def __repr__(self) -> str:
        named = ("peak", "weights", "arena", "workspace", "outputs", *(["state"] * bool(self.state)))
        parts = [f"{name}={format_bytes(getattr(self, name))}" for name in named]
        parts += [f"sizes={{{join_few(f'{shorten(name)!r}: {size}' for name, size in self.sizes.items())}}}"] * bool(
            self.sizes
        )
        parts += [f"unplanned={len(self.unplanned)}"] * bool(self.unplanned)
        return f"Memory({', '.join(parts)})"

    def _tables(self) -> Iterator[Table]:
        rows = [
            ("weights", format_bytes(self.weights), "constants, in the device's layout"),
            (
                "arena",
                format_bytes(self.arena),
                f"intermediate values; {format_bytes(self.without_reuse)} without reuse",
            ),
            ("workspace", format_bytes(self.workspace), "of threads and of the run itself"),
            ("outputs", format_bytes(self.outputs), "new arrays"),
            *([("state", format_bytes(self.state), "what the model remembers between runs")] * bool(self.state)),
            ("peak", format_bytes(self.peak), "all of these, and arrays that pass between native code and the host"),
            ("inputs", format_bytes(self.inputs), "the caller's arrays, not part of the peak"),
        ]
        yield Table(rows, ("memory", "bytes", "purpose"), right=("bytes",), note=self._terms())

    def _terms(self) -> str:
        """Return a note on the sizes this is for, and on nodes that are not counted."""
        terms = [
            f"{shorten(name)} = {size}{' (guessed)' if name in self.guessed else ''}"
            for name, size in self.sizes.items()
        ]
        terms_text = f"For {join_few(terms, _MOST_SIZES)}." if terms else ""
        if self.unplanned:
            nodes = join_few(map(shorten, self.unplanned))
            terms_text += f" Not counted, since their sizes depend on the data: {nodes}."
        return terms_text.strip()


def summarize(plan: ProgramPlan, sizes: Mapping[str, int], guessed: Sequence[str]) -> Memory:
    return Memory(
        weights=plan.weights,
        arena=plan.arena,
        workspace=plan.workspace,
        inputs=plan.inputs,
        outputs=plan.outputs,
        peak=plan.weights + plan.arena + plan.workspace + max(plan.beside, plan.outputs),
        lower_bound=plan.lower_bound,
        without_reuse=sum(part.plan.sum_bytes for part in plan.sections),
        sizes=dict(sizes),
        guessed=tuple(guessed),
        unplanned=plan.unplanned,
    )


def parse_bytes(text: int | str) -> int:
    """Parse 200_000_000, "200MB", "190 MiB" or "1.5G" as a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B?", str(text).strip(), re.IGNORECASE)
    if match is None or isinstance(text, bool):
        raise InputError(
            f"memory_limit {short_repr(text)} is not an amount of memory", hint='for instance "200MB" or "1.5GiB"'
        )
    number, prefix, binary = match.groups()
    amount = float(number) * (1024 if binary else 1000) ** _POWERS[prefix.upper()]
    if amount < 1:
        raise InputError(f"memory_limit {text!r} must be positive")
    return int(min(amount, _MOST_BYTES))


class NamedInput(Protocol):
    """An input of a program, or a TensorSpec."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> Type: ...


def bind_shapes(
    inputs: Sequence[NamedInput], shapes: Mapping[str, int | Sequence[int]], file: str
) -> tuple[dict[str, int], bool]:
    """Bind dynamic dims to sizes by name, and by the shapes of inputs; also return whether one has two sizes.

    That is not an error here: some exporters give unrelated dims the same name.
    """
    from weft.plan.usual_sizes import dynamic_dims

    dynamic = dynamic_dims(inputs)
    by_name = {value.name: value for value in inputs}
    sizes: dict[str, int] = {}
    clash = False
    for name, shape in shapes.items():
        if isinstance(shape, int):
            if name not in dynamic:
                hint = f"the dynamic dims are {', '.join(dynamic)}" if dynamic else "all dims of this model are fixed"
                raise InputError(f"the inputs have no dynamic dim {name!r}", file=file, hint=hint)
            sizes[name] = shape
            continue
        if name not in by_name:
            hint = f"it has {', '.join(by_name)}"
            raise InputError(f"the model has no input {name!r}", file=file, hint=hint)
        for dim, size in _sizes_of(by_name[name], tuple(shape), file):
            clash |= sizes.setdefault(dim, size) != size
    for name, size in sizes.items():
        if size < 0:
            raise InputError(f"dim {name!r} has a negative size: {size}", file=file)
    return sizes, clash


def _sizes_of(value: NamedInput, shape: Shape, file: str) -> Iterator[tuple[str, int]]:
    declared = value.type.shape
    if declared is None:
        return
    fits = len(declared) == len(shape)
    if not fits or any(isinstance(dim, int) and dim != size for dim, size in zip(declared, shape)):
        raise InputError(f"input {value.name!r} is a {value.type}, which {shape} does not fit", file=file)
    for dim, size in zip(declared, shape):
        symbol = dims.as_symbol(dim)
        if symbol is not None:
            yield symbol.name, size


def bind_sizes(inputs: Sequence[Value], sizes: Mapping[str, int], file: str) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of inputs with these sizes of dynamic dims, and None for other dynamic dims."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    names: set[str] = set()
    for value in inputs:
        if value.has_shape:
            names.update(symbol.name for symbol in map(dims.as_symbol, value.shape) if symbol is not None)
            shapes[value.name] = tuple(dim if isinstance(dim, int) else sizes.get(str(dim)) for dim in value.shape)
    for name in sizes:
        if name not in names:
            hint = f"the dynamic dims are {', '.join(sorted(names))}" if names else "all dims of this model are fixed"
            raise InputError(f"the inputs have no dynamic dim {name!r}", file=file, hint=hint)
    return shapes
