"""Emit the function that runs a model: its units in order, with branches and loops around inner units.

The workspace of a run starts with the error word, followed by the memory of the outermost unit (export/plans.py), which
includes that of inner units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.errors import UnsupportedModelError
from weft.export.functions import FunctionText
from weft.export.interface import BAD_INDEX, NOT_OPEN, NULL_ARGUMENT, SMALL_WORKSPACE, Interface, Port
from weft.export.launches import LAUNCH_CODE, NULL, LaunchWriter, Pointer
from weft.export.library import emit_constant
from weft.export.observed import ObservedSizes
from weft.export.plans import PlanWriter, UnitNumbers, call_sizes, reserve_sizes, size_input_address
from weft.export.units import HINT, CodeUnit, item_results
from weft.export.weights import WeightLayout
from weft.ir import dims
from weft.ir.program import Branch, Loop, Step
from weft.ir.work import NativeSection
from weft.plan.layout import value_bytes
from weft.plan.plan import ALIGNMENT

HEAD = ALIGNMENT  # bytes of the error word, before the memory of the outermost unit
GAP = ALIGNMENT  # bytes for the alignment of a workspace


def emit_driver(
    interface: Interface,
    root: CodeUnit,
    weights: WeightLayout,
    observed: Sequence[tuple[CodeUnit, ObservedSizes]],
    small: WeightLayout,
) -> str:
    """Emit all functions and tables except those of weights; `small` are the constants of `observed` programs."""
    run = DriverWriter(interface, weights)
    body = run.emit_run(root)
    observing = [run.emit_observation(unit, small) for unit, _ in observed]
    plans = PlanWriter(interface, HEAD + GAP)
    tables = [
        f'@"{interface.name}.table{number}" = internal constant [{len(row)} x i64] '
        f"[{', '.join(f'i64 {value}' for value in row)}]"
        for row, number in run.tables.items()
    ]
    units = [*root.all_units(), *(unit for unit, _ in observed)]
    functions = [plans.emit_plan(unit, run.numbers[unit.number]) for unit in units]
    content = b"".join(small.pieces())
    if content:
        tables.append(emit_constant(f"{interface.name}.small", content))
    functions += [*observing, plans.emit_sizes(observed)]
    return "\n".join((*tables, *functions, plans.emit_queries(), LAUNCH_CODE.format(name=interface.name), body))


class DriverWriter(LaunchWriter):
    """Emits the function that runs a model, and collects the numbers that its units need."""

    def __init__(self, interface: Interface, weights: WeightLayout) -> None:
        super().__init__(interface.name, weights)
        self.interface = interface
        self.numbers: dict[int, UnitNumbers] = {}

    def emit_run(self, root: CodeUnit) -> str:
        text = self.text
        targets = [Pointer(f"%output{number}") for number in range(len(self.interface.outputs))]
        sources = {port.value: Pointer(f"%input{number}") for number, port in enumerate(self.interface.inputs)}
        for number, port in enumerate(self.interface.size_inputs):
            sources[port.value] = Pointer(f"%sizeinput{number}")
        self.emit_unit(root, "%first", [sources[value] for value in root.inputs], targets)
        self.unit_numbers = self.numbers[root.number]
        self.base = "%first"
        for port in (*self.interface.inputs, *self.interface.outputs):  # before the count of numbers is used
            elements = dims.product(port.shape)
            if not isinstance(elements, int):
                self.unit_numbers.slot(elements)
        start = self._emit_start(root)
        word = text.assign("load i32, ptr %errors, align 4")
        text.fail_if(text.assign(f"icmp ne i32 {word}, 0"), BAD_INDEX)
        text.emit("ret i32 0")
        text.lines[:0] = start
        self._fill_placeholders()
        arguments = "ptr %model, ptr %arguments, ptr %inputs, ptr %outputs, ptr %workspace, i64 %bytes, ptr %parallel"
        function = text.definition(f'define i32 @"{self.name}_run_parallel"({arguments})')
        return "\n".join((function, _RUN.format(name=self.name)))

    def emit_observation(self, unit: CodeUnit, small: WeightLayout) -> str:
        """Emit a function that computes sizes, the only output of a unit, in memory on the stack."""
        if not isinstance(unit.total, int):
            raise UnsupportedModelError("a size is computed from tensors of unknown size", hint=HINT)
        self.text, text = FunctionText(), self.text
        weights, self.weights, self.base = self.weights, small, ""
        positions = {port.value: number for number, port in enumerate(self.interface.size_inputs)}
        sources = [Pointer(size_input_address(self.text, self.interface, positions[value])) for value in unit.inputs]
        self.emit_unit(unit, "%first", sources, [Pointer("%result")])
        body, self.text.lines = self.text.lines, []
        numbers = self.numbers[unit.number]
        self.text.emit(f"%first = alloca [{unit.total + numbers.bytes + ALIGNMENT} x i8], align {ALIGNMENT}")
        self.text.emit("%errors = alloca i32, align 4")
        self._allocate()
        if small.length:
            self.text.emit(f'%weights = getelementptr i8, ptr @"{self.name}.small", i64 0')
        self.text.emit("store i32 0, ptr %errors, align 4")
        self._call_plan(unit, "%first")
        self.text.lines += body
        word = self.text.assign("load i32, ptr %errors, align 4")
        self.text.fail_if(self.text.assign(f"icmp ne i32 {word}, 0"), BAD_INDEX)
        self.text.emit("ret i32 0")
        self._fill_placeholders()
        arguments = "ptr %arguments, ptr %sizes, ptr %result, ptr %parallel"
        function = self.text.definition(f'define internal i32 @"{self.name}.observe{unit.number}"({arguments})')
        self.text, self.weights = text, weights
        return function

    def _allocate(self) -> None:
        self.text.emit(f"%buffers = alloca [{self.most_buffers} x ptr], align 16")
        self.text.emit("%total = alloca i64, align 8")
        self.text.emit("%work = alloca [3 x ptr], align 8")

    def _fill_placeholders(self) -> None:
        for number, numbers in self.numbers.items():
            placeholder, size = _placeholder(number), str(numbers.bytes)
            self.text.lines = [
                line.replace(placeholder, size) if placeholder in line else line for line in self.text.lines
            ]

    def _emit_start(self, root: CodeUnit) -> list[str]:
        """Check the arguments, divide the workspace, and compute the numbers of the outermost unit."""
        text, body = self.text, self.text.lines
        text.lines = []
        self._allocate()
        reserve_sizes(text, self.interface)
        for argument in ("model", "workspace", *(["inputs"] if self.interface.inputs else []), "outputs"):
            text.fail_if(text.assign(f"icmp eq ptr %{argument}, null"), NULL_ARGUMENT)
        text.emit("%weights = load ptr, ptr %model, align 8")
        text.fail_if(text.assign("icmp eq ptr %weights, null"), NOT_OPEN)
        minimum = HEAD + GAP + self.numbers[root.number].bytes
        text.fail_if(text.assign(f"icmp ult i64 %bytes, {minimum}"), SMALL_WORKSPACE)
        address = text.assign("ptrtoint ptr %workspace to i64")
        gap = text.assign(f"and i64 {text.assign(f'sub i64 0, {address}')}, {ALIGNMENT - 1}")
        text.emit(f"%errors = getelementptr i8, ptr %workspace, i64 {gap}")
        text.emit(f"%first = getelementptr i8, ptr %errors, i64 {HEAD}")
        text.emit("store i32 0, ptr %errors, align 4")
        call_sizes(text, self.interface)
        self._call_plan(root, "%first")
        needed = text.assign("load i64, ptr %total, align 8")
        text.fail_if(text.assign(f"icmp ult i64 %bytes, {needed}"), SMALL_WORKSPACE)
        for number in range(len(self.interface.size_inputs)):
            address = size_input_address(text, self.interface, number)
            text.emit(f"%sizeinput{number} = getelementptr i8, ptr {address}, i64 0")
        self._load_ports("input", self.interface.inputs)
        self._load_ports("output", self.interface.outputs)
        lines, text.lines = text.lines, body
        return lines

    def _load_ports(self, kind: str, ports: Sequence[Port]) -> None:
        text = self.text
        for number, port in enumerate(ports):
            address = text.assign(f"getelementptr ptr, ptr %{kind}s, i64 {number}")
            text.emit(f"%{kind}{number} = load ptr, ptr {address}, align 8")
            missing = text.assign(f"icmp eq ptr %{kind}{number}, null")
            elements = dims.product(port.shape)
            if elements == 0:
                continue
            if not isinstance(elements, int):
                has_elements = text.assign(f"icmp ne i64 {self.load_number(elements)}, 0")
                missing = text.assign(f"and i1 {missing}, {has_elements}")
            text.fail_if(missing, NULL_ARGUMENT)

    # -- units -------------------------------------------------------------------------------------------------------

    def _call_plan(self, unit: CodeUnit, base: str) -> None:
        call = f'call i32 @"{self.name}.plan{unit.number}"(ptr %sizes, ptr %total, ptr {base})'
        self.text.fail_with(self.text.assign(call))

    def emit_unit(self, unit: CodeUnit, base: str, sources: Sequence[Pointer], targets: Sequence[Pointer]) -> None:
        """Emit a unit whose numbers and memory are at `base`, after its plan was called."""
        outer = (self.unit, self.unit_numbers, self.base, self.arena) if self.base else None
        self.unit, self.base = unit, base
        self.unit_numbers = self.numbers.setdefault(unit.number, UnitNumbers())
        self.arena = self.text.assign(f"getelementptr i8, ptr {base}, i64 {_placeholder(unit.number)}")
        pointers = {owner: Pointer(self.arena, offset) for owner, offset in unit.offsets.items()}
        pointers.update(self.constant_pointers(unit).items())
        pointers.update(zip(unit.inputs, sources))
        computed = {value for item in unit.items for value in item_results(item)}
        copies = []
        for value, target in zip(unit.outputs, targets, strict=True):
            if value in computed:
                computed.remove(value)
                pointers[value] = target
            else:
                copies.append((value, target))
        self.unit_numbers.note_shapes([*unit.inputs, *unit.outputs], unit.bindings)
        for index, item in enumerate(unit.items):
            if isinstance(item, NativeSection):
                start = pointers[index, "section"]
                self.emit_section(item, unit.layouts[index], pointers, start.offset, unit.bindings)
            else:
                self.unit_numbers.note_shapes([*item.operands, *item.results], unit.bindings)
                self.emit_step(item, index, unit.inside[index], pointers)
        for value, target in copies:
            self.emit_move(pointers[value], target, value_bytes(value, unit.bindings))
        if outer is not None:
            self.unit, self.unit_numbers, self.base, self.arena = outer

    def emit_step(self, step: Step, index: int, inside: Sequence[CodeUnit], pointers: Mapping[object, Pointer]) -> None:
        """Emit a branch or a loop."""
        operands = [Pointer(self.address(pointers[value])) for value in step.operands]
        results = [Pointer(self.address(pointers.get(value, NULL))) for value in step.results]
        memory = self.address(pointers[index, "inside"])
        match step.primitive:
            case Branch(then, _):
                split = 1 + len(then.inputs)
                self.emit_branch(operands[0], inside, (operands[1:split], operands[split:]), results, memory)
            case Loop(_, carries):
                pairs = [
                    (self.address(pointers[index, number, 0]), self.address(pointers[index, number, 1]))
                    for number in range(carries)
                ]
                words = [self.address(pointers[index, word]) for word in ("count", "before", "after")]
                sizes = [
                    self.load_number(value_bytes(value, self.unit.bindings)) for value in step.operands[2 : 2 + carries]
                ]
                self.emit_loop(inside[0], operands, results, memory, pairs, words, sizes)

    def emit_branch(
        self,
        condition: Pointer,
        inside: Sequence[CodeUnit],
        operands: Sequence[Sequence[Pointer]],
        results: Sequence[Pointer],
        memory: str,
    ) -> None:
        text = self.text
        labels, after = [text.label("then"), text.label("otherwise")], text.label("after")
        flag = text.assign(f"load i8, ptr {condition.base}, align 1")
        text.branch(text.assign(f"icmp ne i8 {flag}, 0"), *labels)
        for label, unit, sources in zip(labels, inside, operands, strict=True):
            text.start_block(label)
            self._call_plan(unit, memory)
            self.emit_unit(unit, memory, sources, results)
            text.jump(after)
        text.start_block(after)

    def emit_loop(
        self,
        body: CodeUnit,
        operands: Sequence[Pointer],
        results: Sequence[Pointer],
        memory: str,
        pairs: Sequence[tuple[str, str]],
        words: Sequence[str],
        sizes: Sequence[str],
    ) -> None:
        """Emit a loop with a limit and a condition. Carries alternate between two buffers."""
        text = self.text
        trips, condition, *values = operands
        carries, captures = values[: len(pairs)], values[len(pairs) :]
        count, before, after_body = words
        limit = text.assign(f"load i64, ptr {trips.base}, align 8")
        flag = text.assign(f"load i8, ptr {condition.base}, align 1")
        text.emit(f"store i8 {flag}, ptr {before}, align 1")
        is_limit_positive = text.assign(f"icmp sgt i64 {limit}, 0")
        is_true = text.assign(f"icmp ne i8 {flag}, 0")
        first, loop, inside, latch, after = (text.label(hint) for hint in ("first", "turn", "inside", "latch", "after"))
        skip = text.label("skip")
        text.branch(text.assign(f"and i1 {is_limit_positive}, {is_true}"), first, skip)
        text.start_block(skip)
        text.jump(after)
        text.start_block(first)
        self._call_plan(body, memory)
        ready = text.label("ready")
        text.jump(ready)
        text.start_block(ready)
        text.jump(loop)
        text.start_block(loop)
        time, next_time = text.name("time"), text.name("time")
        text.emit(f"{time} = phi i64 [ 0, %{ready} ], [ {next_time}, %{latch} ]")
        text.jump(inside)
        text.start_block(inside)
        text.emit(f"store i64 {time}, ptr {count}, align 8")
        is_first = text.assign(f"icmp eq i64 {time}, 0")
        odd = text.assign(f"trunc i64 {time} to i1")
        sources, targets = [], []
        for carry, (even_buffer, odd_buffer) in zip(carries, pairs):
            previous = text.assign(f"select i1 {odd}, ptr {even_buffer}, ptr {odd_buffer}")
            sources.append(Pointer(text.assign(f"select i1 {is_first}, ptr {carry.base}, ptr {previous}")))
            targets.append(Pointer(text.assign(f"select i1 {odd}, ptr {odd_buffer}, ptr {even_buffer}")))
        inputs = [Pointer(count), Pointer(before), *sources, *captures]
        self.emit_unit(body, memory, inputs, [Pointer(after_body), *targets])
        text.jump(latch)
        text.start_block(latch)
        text.emit(f"{next_time} = add i64 {time}, 1")
        flag = text.assign(f"load i8, ptr {after_body}, align 1")
        text.emit(f"store i8 {flag}, ptr {before}, align 1")
        again = text.assign(f"icmp slt i64 {next_time}, {limit}")
        end = text.label("end")
        text.branch(text.assign(f"and i1 {again}, {text.assign(f'icmp ne i8 {flag}, 0')}"), loop, end)
        text.start_block(end)
        text.jump(after)
        text.start_block(after)
        iterations = text.assign(f"phi i64 [ 0, %{skip} ], [ {next_time}, %{end} ]")
        never_ran = text.assign(f"icmp eq i64 {iterations}, 0")
        last_odd = text.assign(f"trunc i64 {iterations} to i1")
        for carry, (even_buffer, odd_buffer), result, size in zip(carries, pairs, results, sizes, strict=True):
            final = text.assign(f"select i1 {last_odd}, ptr {even_buffer}, ptr {odd_buffer}")
            self.emit_memmove(text.assign(f"select i1 {never_ran}, ptr {carry.base}, ptr {final}"), result.base, size)


def _placeholder(unit: int) -> str:
    """Return a placeholder for the bytes of a unit's numbers, which are known only at the end."""
    return f"<numbers of {unit}>"


_RUN = """
define i32 @"{name}_run"(ptr %model, ptr %arguments, ptr %inputs, ptr %outputs, ptr %workspace, i64 %bytes) nounwind {{
  %error = call i32 @"{name}_run_parallel"(ptr %model, ptr %arguments, ptr %inputs, ptr %outputs, ptr %workspace,
                                           i64 %bytes, ptr null)
  ret i32 %error
}}
"""
