"""The functions that make one of a model's kernels, as text of LLVM: what sizes lead to, and the run itself.

A run has a workspace: the word for errors, then the numbers that follow from sizes (blocks, parameters, offsets; those
that are known now are in the code), then the arena. `plan` computes the numbers, and refuses sizes that the program is
not for; `run` is the launches in their order, one call after the other, and loops for scans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from weft.export.arithmetic import SizeWriter
from weft.export.interface import (
    BAD_INDEX,
    NO_SENSE,
    NOT_OPEN,
    NULL_ARGUMENT,
    SMALL_WORKSPACE,
    TOO_LARGE,
    Interface,
    Port,
)
from weft.export.memory import (
    ALIGNMENT,
    LARGEST_BYTES,
    Bindings,
    MemoryPlanner,
    ScanLayout,
    SectionLayout,
    aligned,
    bound,
    shape_of,
    value_bytes,
)
from weft.export.weights import Weights
from weft.ir import dims
from weft.ir.dims import Dim, Expr
from weft.ir.program import Value
from weft.ir.work import Launch, NativeSection, Reference, ScanTask, Task
from weft.records import dataclass

WORTH_SHARING = 1 << 18
"""Operations and bytes of a launch from which on its blocks are offered to other threads: some microseconds."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """So many bytes from an address."""

    base: str
    offset: Dim = 0

    def moved(self, more: Dim) -> Pointer:
        return Pointer(self.base, self.offset + more)


_NOWHERE = Pointer("null")


@dataclass(frozen=True, slots=True)
class _Memory:
    """What the references of a work stand for."""

    operands: Sequence[Pointer]
    results: Sequence[Pointer]
    workspaces: Sequence[Pointer]


@dataclass(frozen=True, slots=True)
class _Parameters:
    """Those of a launch; they matter only if it has blocks."""

    blocks: Dim
    values: tuple[Dim, ...]


class FunctionText:
    """The lines of a function in the making."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = count()

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def name(self, hint: str = "v") -> str:
        return f"%{hint}{next(self._names)}"

    def assign(self, text: str) -> str:
        name = self.name()
        self.emit(f"{name} = {text}")
        return name

    def label(self, hint: str) -> str:
        return f"{hint}{next(self._names)}"

    def begin(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def fail_if(self, condition: str | None, error: int) -> None:
        """Leave with an error where a bit is set."""
        if condition is None:
            return
        leave, stay = self.label("leave"), self.label("stay")
        self.emit(f"br i1 {condition}, label %{leave}, label %{stay}")
        self.begin(leave)
        self.emit(f"ret i32 {error}")
        self.begin(stay)


class DriverWriter:
    """Writes the functions of one model."""

    def __init__(
        self,
        interface: Interface,
        section: NativeSection | None,
        constants: Mapping[Value, object],
        weights: Weights,
        usual: Mapping[str, int],
    ) -> None:
        self.interface, self.section, self.weights = interface, section, weights
        self.name = interface.name
        self.planner = MemoryPlanner(usual)
        self._slots: dict[Expr, int] = {}  # numbers that are computed from sizes, by their place
        self._rows: dict[_Parameters, int] = {}
        self._tables: dict[tuple[int, ...], int] = {}  # parameters that are known now
        self._count = 0
        self._most_buffers = 1
        self._checked: dict[Dim, None] = {}  # sizes of tensors
        outer = {*(port.value for port in interface.inputs), *(port.value for port in interface.outputs)}
        self.layout = None if section is None else self.planner.lay_out(section, outer | constants.keys())
        self.total: Dim = 0 if self.layout is None else self.layout.total

    # -- numbers -----------------------------------------------------------------------------------------------------

    def slot(self, dim: Expr) -> int:
        if dim not in self._slots:
            self._slots[dim] = self._count
            self._count += 1
        return self._slots[dim]

    def row(self, parameters: _Parameters) -> int:
        if parameters not in self._rows:
            self._rows[parameters] = self._count
            self._count += len(parameters.values)
        return self._rows[parameters]

    @property
    def head(self) -> int:
        """Bytes of a workspace before its arena."""
        return ALIGNMENT + -(-self._count * 8 // ALIGNMENT) * ALIGNMENT

    # -- the run -----------------------------------------------------------------------------------------------------

    def write(self) -> str:
        """All functions and tables of the model but those of its weights."""
        run = _RunWriter(self).write()
        tables = [
            f'@"{self.name}.table{number}" = internal constant [{len(row)} x i64] '
            f"[{', '.join(f'i64 {value}' for value in row)}]"
            for row, number in self._tables.items()
        ]
        return "\n".join((*tables, self._plan(), self._queries(), _LAUNCH.format(name=self.name), run))

    def _plan(self) -> str:
        """Check sizes, and compute the bytes of a workspace and, where `numbers` is not null, the numbers of a run."""
        text = FunctionText()
        write = SizeWriter(text.emit, text.name)
        self._check(text, write)
        for name, parts in self.planner.definitions:
            for part in parts:
                text.fail_if(write.fault(part), TOO_LARGE)
            value = write.largest([write.value(part) for part in parts])
            text.fail_if(text.assign(f"icmp ugt i64 {value}, {LARGEST_BYTES}"), TOO_LARGE)
            write.symbols[name] = value
        total = aligned(self.total + self.head + ALIGNMENT)
        text.emit(f"store i64 {write.value(total)}, ptr %total")
        if self._count:
            asked, fill, leave = text.assign("icmp ne ptr %numbers, null"), text.label("fill"), text.label("done")
            text.emit(f"br i1 {asked}, label %{fill}, label %{leave}")
            text.begin(leave)
            text.emit("ret i32 0")
            text.begin(fill)
            for dim, slot in self._slots.items():
                text.fail_if(write.fault(dim), TOO_LARGE)
                self._store(text, write.value(dim), slot)
            for parameters, first in self._rows.items():
                self._store_row(text, write, parameters, first)
        text.emit("ret i32 0")
        signature = f'define internal i32 @"{self.name}.plan"(ptr %sizes, ptr %total, ptr %numbers) nounwind {{'
        return "\n".join((signature, "entry:", *text.lines, "}"))

    def _store_row(self, text: FunctionText, write: SizeWriter, parameters: _Parameters, first: int) -> None:
        values = [write.value(dim) for dim in parameters.values]
        wrong = write.either(*[write.fault(dim) for dim in parameters.values])
        if wrong is not None:
            some = text.assign(f"icmp sgt i64 {write.value(parameters.blocks)}, 0")
            text.fail_if(text.assign(f"and i1 {wrong}, {some}"), TOO_LARGE)
        for number, value in enumerate(values):
            self._store(text, value, first + number)

    def _store(self, text: FunctionText, value: str, slot: int) -> None:
        place = text.assign(f"getelementptr i64, ptr %numbers, i64 {slot}")
        text.emit(f"store i64 {value}, ptr {place}, align 8")

    def _check(self, text: FunctionText, write: SizeWriter) -> None:
        """Sizes within their ranges, guards, and tensors that can be."""
        self._load_sizes(text, write)
        for size in self.interface.sizes:
            value = write.symbols[size.symbol.name]
            text.fail_if(text.assign(f"icmp slt i64 {value}, {size.low}"), size.error)
            text.fail_if(text.assign(f"icmp sgt i64 {value}, {size.high}"), size.error)
        for error, guard in self.interface.guards:
            left, right = write.value(guard.left), write.value(guard.right)
            text.fail_if(write.either(write.fault(guard.left), write.fault(guard.right)), error)
            order = "slt" if guard.at_least else "ne"
            text.fail_if(text.assign(f"icmp {order} i64 {left}, {right}"), error)
        for dim in self._checked:
            low = dims.bounds(dim)[0]
            if low is None or low < 0:
                text.fail_if(write.fault(dim), NO_SENSE)
                text.fail_if(text.assign(f"icmp slt i64 {write.value(dim)}, 0"), NO_SENSE)
        for port in (*self.interface.inputs, *self.interface.outputs):
            whole = dims.product(port.shape) * port.dtype.numpy.itemsize
            if not isinstance(whole, int):
                text.fail_if(write.fault(whole), TOO_LARGE)
                text.fail_if(text.assign(f"icmp ugt i64 {write.value(whole)}, {LARGEST_BYTES}"), TOO_LARGE)

    def _load_sizes(self, text: FunctionText, write: SizeWriter) -> None:
        sizes = self.interface.sizes
        if sizes:
            text.fail_if(text.assign("icmp eq ptr %sizes, null"), NULL_ARGUMENT)
        for number, size in enumerate(sizes):
            place = text.assign(f"getelementptr i64, ptr %sizes, i64 {number}")
            write.symbols[size.symbol.name] = text.assign(f"load i64, ptr {place}, align 8")

    def check_shapes(self, values: Sequence[Value], bindings: Bindings) -> None:
        for value in values:
            self._checked.update(dict.fromkeys(dim for dim in shape_of(value, bindings) if not isinstance(dim, int)))

    def _queries(self) -> str:
        """The functions that tell what sizes lead to."""
        text = FunctionText()
        write = SizeWriter(text.emit, text.name)
        text.fail_if(text.assign("icmp eq ptr %shapes, null"), NULL_ARGUMENT)
        total = text.assign("alloca i64, align 8")
        error = text.assign(f'call i32 @"{self.name}.plan"(ptr %sizes, ptr {total}, ptr null)')
        wrong, leave, stay = text.assign(f"icmp ne i32 {error}, 0"), text.label("leave"), text.label("stay")
        text.emit(f"br i1 {wrong}, label %{leave}, label %{stay}")
        text.begin(leave)
        text.emit(f"ret i32 {error}")
        text.begin(stay)
        self._load_sizes(text, write)
        number = 0
        for port in self.interface.outputs:
            for dim in (dims.product(port.shape), *port.shape):
                place = text.assign(f"getelementptr i64, ptr %shapes, i64 {number}")
                text.emit(f"store i64 {write.value(dim)}, ptr {place}, align 8")
                number += 1
        text.emit("ret i32 0")
        shapes = f'define i32 @"{self.name}_output_shapes"(ptr %sizes, ptr %shapes) nounwind {{'
        return "\n".join((_QUERIES.format(name=self.name), shapes, "entry:", *text.lines, "}"))

    def table(self, row: tuple[int, ...]) -> str:
        return f'@"{self.name}.table{self._tables.setdefault(row, len(self._tables))}"'

    def note_buffers(self, number: int) -> None:
        self._most_buffers = max(self._most_buffers, number)

    @property
    def most_buffers(self) -> int:
        return self._most_buffers


class _RunWriter:
    """Writes the function that runs a model."""

    def __init__(self, driver: DriverWriter) -> None:
        self.driver, self.interface = driver, driver.interface
        self.text = FunctionText()

    def write(self) -> str:
        text, interface = self.text, self.interface
        places: dict[Value, Pointer] = {
            value: Pointer("%weights", offset) for value, offset in self.driver.weights.values.items()
        }
        for number, port in enumerate(interface.inputs):
            places[port.value] = Pointer(f"%input{number}")
        copies = []
        made = set() if self.driver.section is None else set(self.driver.section.outputs)
        for number, port in enumerate(interface.outputs):
            target = Pointer(f"%output{number}")
            if port.value in made:
                made.remove(port.value)
                places[port.value] = target
            else:
                copies.append((port, target, places[port.value]))
        self.driver.check_shapes([port.value for port in (*interface.inputs, *interface.outputs)], {})
        if self.driver.section is not None and self.driver.layout is not None:
            self.section(self.driver.section, self.driver.layout, places, 0, {})
        for port, target, source in copies:
            self.move(source, target, value_bytes(port.value, {}))
        start = self._start()  # which knows how many numbers there are only now
        failed = self._failed()
        signature = (
            f'define i32 @"{self.driver.name}_run_parallel"(ptr %model, ptr %sizes, ptr %inputs, ptr %outputs, '
            "ptr %workspace, i64 %bytes, ptr %parallel) nounwind {"
        )
        return "\n".join((signature, "entry:", *start, *text.lines, *failed, "}", _RUN.format(name=self.driver.name)))

    def _start(self) -> list[str]:
        """Check what is given, find the parts of the workspace, and compute the numbers."""
        text, driver = FunctionText(), self.driver
        text._names = self.text._names
        for given in ("model", "workspace", *(["inputs"] if self.interface.inputs else []), "outputs"):
            text.fail_if(text.assign(f"icmp eq ptr %{given}, null"), NULL_ARGUMENT)
        text.emit("%weights = load ptr, ptr %model, align 8")
        text.fail_if(text.assign("icmp eq ptr %weights, null"), NOT_OPEN)
        text.emit(f"%buffers = alloca [{driver.most_buffers} x ptr], align 16")
        text.emit("%total = alloca i64, align 8")
        text.emit("%work = alloca [3 x ptr], align 8")
        text.fail_if(text.assign(f"icmp ult i64 %bytes, {driver.head + ALIGNMENT}"), SMALL_WORKSPACE)
        address = text.assign("ptrtoint ptr %workspace to i64")
        negative = text.assign(f"sub i64 0, {address}")
        gap = text.assign(f"and i64 {negative}, {ALIGNMENT - 1}")
        text.emit(f"%errors = getelementptr i8, ptr %workspace, i64 {gap}")
        text.emit(f"%numbers = getelementptr i8, ptr %errors, i64 {ALIGNMENT}")
        text.emit(f"%arena = getelementptr i8, ptr %errors, i64 {driver.head}")
        text.emit("store i32 0, ptr %errors, align 4")
        error = text.assign(f'call i32 @"{driver.name}.plan"(ptr %sizes, ptr %total, ptr %numbers)')
        wrong, leave, stay = text.assign(f"icmp ne i32 {error}, 0"), text.label("leave"), text.label("stay")
        text.emit(f"br i1 {wrong}, label %{leave}, label %{stay}")
        text.begin(leave)
        text.emit(f"ret i32 {error}")
        text.begin(stay)
        needed = text.assign("load i64, ptr %total, align 8")
        text.fail_if(text.assign(f"icmp ult i64 %bytes, {needed}"), SMALL_WORKSPACE)
        self._load_ports(text, "input", self.interface.inputs)
        self._load_ports(text, "output", self.interface.outputs)
        return text.lines

    def _load_ports(self, text: FunctionText, kind: str, ports: Sequence[Port]) -> None:
        for number, port in enumerate(ports):
            place = text.assign(f"getelementptr ptr, ptr %{kind}s, i64 {number}")
            text.emit(f"%{kind}{number} = load ptr, ptr {place}, align 8")
            missing = text.assign(f"icmp eq ptr %{kind}{number}, null")
            elements = dims.product(port.shape)
            if elements == 0:
                continue
            if not isinstance(elements, int):
                some = text.assign(f"icmp ne i64 {self._loaded(text, elements)}, 0")
                missing = text.assign(f"and i1 {missing}, {some}")
            text.fail_if(missing, NULL_ARGUMENT)

    def _failed(self) -> list[str]:
        text = FunctionText()
        text._names = self.text._names
        word = text.assign("load i32, ptr %errors, align 4")
        text.fail_if(text.assign(f"icmp ne i32 {word}, 0"), BAD_INDEX)
        text.emit("ret i32 0")
        return text.lines

    # -- values ------------------------------------------------------------------------------------------------------

    def number(self, dim: Dim) -> str:
        return self._loaded(self.text, dim)

    def _loaded(self, text: FunctionText, dim: Dim) -> str:
        if isinstance(dim, int):
            return str(dim)
        place = text.assign(f"getelementptr i64, ptr %numbers, i64 {self.driver.slot(dim)}")
        return text.assign(f"load i64, ptr {place}, align 8")

    def address(self, pointer: Pointer) -> str:
        if pointer.offset == 0:
            return pointer.base
        return self.text.assign(f"getelementptr i8, ptr {pointer.base}, i64 {self.number(pointer.offset)}")

    def move(self, source: Pointer, target: Pointer, size: Dim) -> None:
        number = self.number(size)
        self._move(self.address(source), self.address(target), number)

    def _move(self, source: str, target: str, number: str) -> None:
        self.text.emit(f"call ptr @memmove(ptr {target}, ptr {source}, i64 {number})")

    # -- launches ----------------------------------------------------------------------------------------------------

    def section(
        self,
        section: NativeSection,
        layout: SectionLayout,
        given: Mapping[Value, Pointer],
        base: Dim,
        bindings: Bindings,
    ) -> None:
        """All tasks; `given` are the places of what lies elsewhere, `base` where the section's memory begins."""
        places = {owner: Pointer("%arena", base + offset) for owner, offset in layout.offsets.items()}
        places.update(given)

        def locate(value: Value) -> Pointer:
            home = layout.storage.home(value)
            return places.get(home.base, _NOWHERE).moved(home.offset)

        for number in layout.order:
            task = section.tasks[number]
            self.driver.check_shapes((*task.operands, *task.results), bindings)
            operands, results = [locate(value) for value in task.operands], [locate(value) for value in task.results]
            if isinstance(task, ScanTask):
                start = layout.offsets[number, -1] + base
                self.scan(task, layout.scans[number], operands, results, start)
                continue
            spaces = [places[number, index] for index in range(len(task.work.workspaces))]
            skipped = {
                launch for launch in range(len(task.work.launches)) if (number, launch) in layout.storage.skipped
            }
            self.work(task, _Memory(operands, results, spaces), skipped, bindings)

    def work(self, task: Task, memory: _Memory, skipped: set[int], bindings: Bindings) -> None:
        effort = bound(task.effort.flops, bindings) + 2 * bound(task.effort.bytes, bindings)
        shares = max(len(task.work.launches) - len(skipped), 1)
        for number, launch in enumerate(task.work.launches):
            if number not in skipped and launch.blocks != 0:
                buffers = [self.locate(task, reference, memory) for reference in launch.references]
                self.launch(launch, buffers, bindings, self._is_shared(effort, shares))

    def _is_shared(self, effort: Dim, shares: int) -> str:
        """Whether a launch is worth sharing, as a bit; nothing is known of those without an effort."""
        if isinstance(effort, int):
            return "true" if effort == 0 or effort >= WORTH_SHARING * shares else "false"
        return self.text.assign(f"icmp sge i64 {self.number(effort)}, {WORTH_SHARING * shares}")

    def locate(self, task: Task, reference: Reference, memory: _Memory) -> Pointer:
        match reference.kind:
            case "operand":
                return memory.operands[reference.number]
            case "result":
                return memory.results[reference.number]
            case "workspace":
                return memory.workspaces[reference.number]
            case "constant":
                return Pointer("%weights", self.driver.weights.packed[id(task.work), reference.number])
            case "errors":
                return Pointer("%errors")

    def launch(self, launch: Launch, buffers: Sequence[Pointer], bindings: Bindings, shared: str) -> None:
        text = self.text
        self.driver.note_buffers(len(buffers))
        for number, pointer in enumerate(buffers):
            address = self.address(pointer)
            place = text.assign(f"getelementptr ptr, ptr %buffers, i64 {number}") if number else "%buffers"
            text.emit(f"store ptr {address}, ptr {place}, align 8")
        blocks = bound(launch.blocks, bindings)
        values = tuple(bound(value, bindings) for value in launch.values)
        known = tuple(value for value in values if isinstance(value, int))
        if not values:
            parameters = "null"
        elif len(known) == len(values):
            parameters = self.driver.table(known)
        else:
            row = self.driver.row(_Parameters(blocks, values))
            parameters = text.assign(f"getelementptr i64, ptr %numbers, i64 {row}")
        text.emit(
            f'call void @"{self.driver.name}.launch"(ptr @"{launch.kernel.name}", i64 {self.number(blocks)}, '
            f"ptr %buffers, ptr {parameters}, ptr %work, ptr %parallel, i1 {shared})"
        )

    # -- scans -------------------------------------------------------------------------------------------------------

    def scan(
        self,
        task: ScanTask,
        layout: ScanLayout,
        operands: Sequence[Pointer],
        results: Sequence[Pointer],
        start: Dim,
    ) -> None:
        """A loop over the body: carries alternate between two places, sequences move on; the last carries are results.

        A carry that is an output as well is read back from where it went.
        """
        text = self.text
        carries, sequences = task.primitive.carries, task.primitive.sequences
        inputs, outputs = task.program.inputs, task.program.outputs
        bindings = layout.inner
        length = self.number(bound(task.primitive.length, bindings))
        starts = [self.address(pointer) for pointer in operands]
        ends = [self.address(pointer) for pointer in results]
        pairs = [tuple(self.address(Pointer("%arena", start + half)) for half in pair) for pair in layout.pairs]
        steps = {
            number: self.number(value_bytes(inputs[number], bindings)) for number in range(carries, carries + sequences)
        }
        strides = {n: self.number(value_bytes(outputs[n], bindings)) for n in range(carries, len(outputs))}
        homes = {value: number for number, value in enumerate(outputs)}  # of a value that is there twice: the later

        before, turn, inside, after = (text.label(hint) for hint in ("before", "turn", "inside", "after"))
        time, next_time = text.name("time"), text.name("time")
        text.emit(f"br label %{before}")
        text.begin(before)
        text.emit(f"br label %{turn}")
        text.begin(turn)
        latch = text.label("latch")
        text.emit(f"{time} = phi i64 [ 0, %{before} ], [ {next_time}, %{latch} ]")
        more = text.assign(f"icmp slt i64 {time}, {length}")
        text.emit(f"br i1 {more}, label %{inside}, label %{after}")
        text.begin(inside)
        first = text.assign(f"icmp eq i64 {time}, 0")
        text.emit(f"{next_time} = add i64 {time}, 1")
        last = text.assign(f"icmp eq i64 {next_time}, {length}")
        odd = text.assign(f"trunc i64 {time} to i1")
        previous = text.assign(f"sub i64 {time}, 1")

        def shifted(address: str, stride: str, at: str) -> str:
            far = text.assign(f"mul i64 {at}, {stride}")
            return text.assign(f"getelementptr i8, ptr {address}, i64 {far}")

        def made(number: int, at: str) -> str:
            """Where an output went in a turn; a carry, in one that is not the last."""
            if number >= carries:
                return shifted(ends[number], strides[number], at)
            even_first, odd_first = pairs[number] if at == time else reversed(pairs[number])
            return text.assign(f"select i1 {odd}, ptr {odd_first}, ptr {even_first}")

        places: dict[Value, Pointer] = {
            value: Pointer("%weights", offset) for value, offset in self.driver.weights.values.items()
        }
        places.update(zip(inputs[carries + sequences :], map(Pointer, starts[carries + sequences :])))
        for number in range(carries):
            found = made(homes[outputs[number]], previous)
            places[inputs[number]] = Pointer(text.assign(f"select i1 {first}, ptr {starts[number]}, ptr {found}"))
        for number in range(carries, carries + sequences):
            places[inputs[number]] = Pointer(shifted(starts[number], steps[number], time))
        for value, number in homes.items():
            found = made(number, time)
            if number < carries:
                found = text.assign(f"select i1 {last}, ptr {ends[number]}, ptr {found}")
            places[value] = Pointer(found)
        self.section(task.body, layout.body, places, start + layout.base, bindings)
        text.emit(f"br label %{latch}")
        text.begin(latch)
        text.emit(f"br label %{turn}")
        text.begin(after)
        none = text.assign(f"icmp sle i64 {length}, 0")
        final = text.assign(f"sub i64 {length}, 1")
        for number in range(carries):
            home = homes[outputs[number]]
            size = self.number(value_bytes(inputs[number], bindings))
            source = starts[number]
            if home == number:
                size = text.assign(f"select i1 {none}, i64 {size}, i64 0")
            else:
                reached = shifted(ends[home], strides[home], final) if home >= carries else ends[home]
                source = text.assign(f"select i1 {none}, ptr {source}, ptr {reached}")
            self._move(source, ends[number], size)


_LAUNCH = """
; Run all blocks of a kernel, here or by whoever the caller has for that.
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

_QUERIES = """
define i32 @"{name}_check"(ptr %sizes) nounwind {{
  %total = alloca i64, align 8
  %error = call i32 @"{name}.plan"(ptr %sizes, ptr %total, ptr null)
  ret i32 %error
}}

define i64 @"{name}_workspace_bytes"(ptr %sizes) nounwind {{
  %total = alloca i64, align 8
  %error = call i32 @"{name}.plan"(ptr %sizes, ptr %total, ptr null)
  %fits = icmp eq i32 %error, 0
  %bytes = load i64, ptr %total, align 8
  %result = select i1 %fits, i64 %bytes, i64 0
  ret i64 %result
}}
"""

_RUN = """
define i32 @"{name}_run"(ptr %model, ptr %sizes, ptr %inputs, ptr %outputs, ptr %workspace, i64 %bytes) nounwind {{
  %error = call i32 @"{name}_run_parallel"(ptr %model, ptr %sizes, ptr %inputs, ptr %outputs, ptr %workspace,
                                           i64 %bytes, ptr null)
  ret i32 %error
}}
"""
