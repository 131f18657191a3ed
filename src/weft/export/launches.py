"""Emit the launches of a section's kernels, in order, and loops for scans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.export.functions import FunctionText
from weft.export.plans import ParameterRow, UnitNumbers
from weft.export.units import CodeUnit
from weft.export.weights import WeightLayout
from weft.ir.dims import Dim
from weft.ir.program import Value
from weft.ir.work import Launch, NativeSection, Reference, ScanTask, Task
from weft.plan.layout import Bindings, ScanLayout, SectionLayout, bind_dim, value_bytes
from weft.records import dataclass

WORTH_SHARING = 1 << 18
"""The least effort (operations and bytes) of a launch that is shared with other threads: a few microseconds."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """An offset in bytes from an address."""

    base: str
    offset: Dim = 0

    def moved(self, more: Dim) -> Pointer:
        return Pointer(self.base, self.offset + more)


NULL = Pointer("null")


@dataclass(frozen=True, slots=True)
class _WorkBuffers:
    """The buffers that the references of a work name."""

    operands: Sequence[Pointer]
    results: Sequence[Pointer]
    workspaces: Sequence[Pointer]


class LaunchWriter:
    """Emits the sections of units into a function.

    `unit` is the current one, `base` the address of its numbers, `arena` that of its memory, which follows them.
    """

    def __init__(self, name: str, weights: WeightLayout) -> None:
        self.name, self.weights = name, weights
        self.text = FunctionText()
        self.tables: dict[tuple[int, ...], int] = {}  # constant parameters
        self.most_buffers = 1
        self.unit: CodeUnit
        self.unit_numbers = UnitNumbers()
        self.base = self.arena = ""

    # -- values ------------------------------------------------------------------------------------------------------

    def load_number(self, dim: Dim) -> str:
        if isinstance(dim, int):
            return str(dim)
        address = self.text.assign(f"getelementptr i64, ptr {self.base}, i64 {self.unit_numbers.slot(dim)}")
        return self.text.assign(f"load i64, ptr {address}, align 8")

    def address(self, pointer: Pointer) -> str:
        if pointer.offset == 0:
            return pointer.base
        return self.text.assign(f"getelementptr i8, ptr {pointer.base}, i64 {self.load_number(pointer.offset)}")

    def emit_move(self, source: Pointer, target: Pointer, size: Dim) -> None:
        number = self.load_number(size)
        self.emit_memmove(self.address(source), self.address(target), number)

    def emit_memmove(self, source: str, target: str, number: str) -> None:
        self.text.emit(f"call ptr @memmove(ptr {target}, ptr {source}, i64 {number})")

    def constant_pointers(self, unit: CodeUnit) -> dict[Value, Pointer]:
        return {value: Pointer("%weights", offset) for value, offset in self.weights.values[unit.number].items()}

    # -- launches ----------------------------------------------------------------------------------------------------

    def emit_section(
        self,
        section: NativeSection,
        layout: SectionLayout,
        external: Mapping[object, Pointer],
        base: Dim,
        bindings: Bindings,
    ) -> None:
        """Emit all tasks; `external` are the pointers to other values, `base` is the offset of the section's memory."""
        offsets = layout.offsets
        pointers = {owner: Pointer(self.arena, base + offset) for owner, offset in offsets.items()}

        def locate(value: Value) -> Pointer:
            home = layout.storage.home(value)
            pointer = pointers.get(home.base) or external.get(home.base, NULL)
            return pointer.moved(home.offset)

        for number in layout.order:
            task = section.tasks[number]
            self.unit_numbers.note_shapes((*task.operands, *task.results), bindings)
            operands, results = [locate(value) for value in task.operands], [locate(value) for value in task.results]
            if isinstance(task, ScanTask):
                start = offsets[number, -1] + base
                self.emit_scan(task, layout.scans[number], operands, results, start)
                continue
            spaces = [pointers[number, index] for index in range(len(task.work.workspaces))]
            launches = range(len(task.work.launches))
            skipped = {launch for launch in launches if (number, launch) in layout.storage.skipped}
            self.emit_work(task, _WorkBuffers(operands, results, spaces), skipped, bindings)

    def emit_work(self, task: Task, memory: _WorkBuffers, skipped: set[int], bindings: Bindings) -> None:
        effort = bind_dim(task.effort.flops, bindings) + 2 * bind_dim(task.effort.bytes, bindings)
        shares = max(len(task.work.launches) - len(skipped), 1)
        for number, launch in enumerate(task.work.launches):
            if number not in skipped and launch.blocks != 0:
                buffers = [self.locate(task, reference, memory) for reference in launch.references]
                self.emit_launch(launch, buffers, bindings, self._is_shared(effort, shares))

    def _is_shared(self, effort: Dim, shares: int) -> str:
        """Emit whether a launch is shared with other threads, as a bit; those of unknown effort are."""
        if isinstance(effort, int):
            return "true" if effort == 0 or effort >= WORTH_SHARING * shares else "false"
        return self.text.assign(f"icmp sge i64 {self.load_number(effort)}, {WORTH_SHARING * shares}")

    def locate(self, task: Task, reference: Reference, memory: _WorkBuffers) -> Pointer:
        match reference.kind:
            case "operand":
                return memory.operands[reference.number]
            case "result":
                return memory.results[reference.number]
            case "workspace":
                return memory.workspaces[reference.number]
            case "constant":
                return Pointer("%weights", self.weights.packed[id(task.work), reference.number])
            case "errors":
                return Pointer("%errors")

    def emit_launch(self, launch: Launch, buffers: Sequence[Pointer], bindings: Bindings, shared: str) -> None:
        text = self.text
        self.most_buffers = max(self.most_buffers, len(buffers))
        for number, pointer in enumerate(buffers):
            address = self.address(pointer)
            slot = text.assign(f"getelementptr ptr, ptr %buffers, i64 {number}") if number else "%buffers"
            text.emit(f"store ptr {address}, ptr {slot}, align 8")
        blocks = bind_dim(launch.blocks, bindings)
        values = tuple(bind_dim(value, bindings) for value in launch.values)
        constants = tuple(value for value in values if isinstance(value, int))
        if not values:
            parameters = "null"
        elif len(constants) == len(values):
            parameters = self.table(constants)
        else:
            row = self.unit_numbers.row(ParameterRow(blocks, values))
            parameters = text.assign(f"getelementptr i64, ptr {self.base}, i64 {row}")
        text.emit(
            f'call void @"{self.name}.launch"(ptr @"{launch.kernel.name}", i64 {self.load_number(blocks)}, '
            f"ptr %buffers, ptr {parameters}, ptr %work, ptr %parallel, i1 {shared})"
        )

    def table(self, row: tuple[int, ...]) -> str:
        return f'@"{self.name}.table{self.tables.setdefault(row, len(self.tables))}"'

    # -- scans -------------------------------------------------------------------------------------------------------

    def emit_scan(
        self,
        task: ScanTask,
        layout: ScanLayout,
        operands: Sequence[Pointer],
        results: Sequence[Pointer],
        start: Dim,
    ) -> None:
        """Emit a loop over the body: carries alternate between two buffers, and the last carries are results.

        A carry that is also a sequence output is read back from there.
        """
        text = self.text
        carries, sequences = task.primitive.carries, task.primitive.sequences
        inputs, outputs = task.program.inputs, task.program.outputs
        bindings = layout.inner
        length = self.load_number(bind_dim(task.primitive.length, bindings))
        starts = [self.address(pointer) for pointer in operands]
        ends = [self.address(pointer) for pointer in results]
        pairs = [tuple(self.address(Pointer(self.arena, start + half)) for half in pair) for pair in layout.pairs]
        steps = {
            number: self.load_number(value_bytes(inputs[number], bindings))
            for number in range(carries, carries + sequences)
        }
        strides = {n: self.load_number(value_bytes(outputs[n], bindings)) for n in range(carries, len(outputs))}
        homes = {
            value: number for number, value in enumerate(outputs)
        }  # the last position of a value that occurs twice

        before, loop, inside, after = (text.label(hint) for hint in ("before", "turn", "inside", "after"))
        time, next_time = text.name("time"), text.name("time")
        text.emit(f"br label %{before}")
        text.start_block(before)
        text.emit(f"br label %{loop}")
        text.start_block(loop)
        latch = text.label("latch")
        text.emit(f"{time} = phi i64 [ 0, %{before} ], [ {next_time}, %{latch} ]")
        more = text.assign(f"icmp slt i64 {time}, {length}")
        text.emit(f"br i1 {more}, label %{inside}, label %{after}")
        text.start_block(inside)
        first = text.assign(f"icmp eq i64 {time}, 0")
        text.emit(f"{next_time} = add i64 {time}, 1")
        last = text.assign(f"icmp eq i64 {next_time}, {length}")
        odd = text.assign(f"trunc i64 {time} to i1")
        previous = text.assign(f"sub i64 {time}, 1")

        def emit_address(address: str, stride: str, at: str) -> str:
            far = text.assign(f"mul i64 {at}, {stride}")
            return text.assign(f"getelementptr i8, ptr {address}, i64 {far}")

        def output_address(number: int, at: str) -> str:
            """Return the address of an output in an iteration, which for a carry is not the last."""
            if number >= carries:
                return emit_address(ends[number], strides[number], at)
            even_first, odd_first = pairs[number] if at == time else reversed(pairs[number])
            return text.assign(f"select i1 {odd}, ptr {odd_first}, ptr {even_first}")

        pointers: dict[object, Pointer] = dict(self.constant_pointers(self.unit).items())
        pointers.update(zip(inputs[carries + sequences :], map(Pointer, starts[carries + sequences :])))
        for number in range(carries):
            carried = output_address(homes[outputs[number]], previous)
            pointers[inputs[number]] = Pointer(text.assign(f"select i1 {first}, ptr {starts[number]}, ptr {carried}"))
        for number in range(carries, carries + sequences):
            pointers[inputs[number]] = Pointer(emit_address(starts[number], steps[number], time))
        for value, number in homes.items():
            address = output_address(number, time)
            if number < carries:
                address = text.assign(f"select i1 {last}, ptr {ends[number]}, ptr {address}")
            pointers[value] = Pointer(address)
        self.emit_section(task.body, layout.body, pointers, start + layout.base, bindings)
        text.emit(f"br label %{latch}")
        text.start_block(latch)
        text.emit(f"br label %{loop}")
        text.start_block(after)
        never_runs = text.assign(f"icmp sle i64 {length}, 0")
        final = text.assign(f"sub i64 {length}, 1")
        for number in range(carries):
            home = homes[outputs[number]]
            size = self.load_number(value_bytes(inputs[number], bindings))
            source = starts[number]
            if home == number:
                size = text.assign(f"select i1 {never_runs}, i64 {size}, i64 0")
            else:
                address = emit_address(ends[home], strides[home], final) if home >= carries else ends[home]
                source = text.assign(f"select i1 {never_runs}, ptr {source}, ptr {address}")
            self.emit_memmove(source, ends[number], size)


LAUNCH_CODE = """
; Run all blocks of a kernel, on this thread or through the caller's `parallel`.
define internal void @"{name}.launch"(ptr %kernel, i64 %blocks, ptr %buffers, ptr %parameters, ptr %work,
                                      ptr %parallel, i1 %shared) nounwind {{
entry:
  %any = icmp sgt i64 %blocks, 0
  br i1 %any, label %choose, label %end
choose:
  %several = icmp sgt i64 %blocks, 1
  %helped = icmp ne ptr %parallel, null
  %divisible = and i1 %several, %shared
  %divided = and i1 %divisible, %helped
  br i1 %divided, label %share, label %alone
alone:
  call void %kernel(i64 0, i64 %blocks, ptr %buffers, ptr %parameters)
  ret void
share:
  store ptr %kernel, ptr %work, align 8
  %buffers.place = getelementptr ptr, ptr %work, i64 1
  store ptr %buffers, ptr %buffers.place, align 8
  %parameters.place = getelementptr ptr, ptr %work, i64 2
  store ptr %parameters, ptr %parameters.place, align 8
  %spread = load ptr, ptr %parallel, align 8
  %context.place = getelementptr ptr, ptr %parallel, i64 1
  %context = load ptr, ptr %context.place, align 8
  call void %spread(ptr %context, i64 %blocks, ptr @"{name}.blocks", ptr %work)
  ret void
end:
  ret void
}}

define internal void @"{name}.blocks"(ptr %work, i64 %first, i64 %last) nounwind {{
  %kernel = load ptr, ptr %work, align 8
  %buffers.place = getelementptr ptr, ptr %work, i64 1
  %buffers = load ptr, ptr %buffers.place, align 8
  %parameters.place = getelementptr ptr, ptr %work, i64 2
  %parameters = load ptr, ptr %parameters.place, align 8
  call void %kernel(i64 %first, i64 %last, ptr %buffers, ptr %parameters)
  ret void
}}
"""
