"""A run of a model as one function in LLVM's language: units in order, branches and loops around those inside.

A run has a workspace: the word for errors, then the memory of the first unit (export/plans.py), which has that of the
units inside of it somewhere in its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.errors import UnsupportedModelError
from weft.export.functions import FunctionText
from weft.export.interface import BAD_INDEX, NOT_OPEN, NULL_ARGUMENT, SMALL_WORKSPACE, Interface, Port
from weft.export.launches import LAUNCH_CODE, NOWHERE, LaunchWriter, Pointer
from weft.export.library import constant_text
from weft.export.memory import ALIGNMENT, value_bytes
from weft.export.observed import ObservedSizes
from weft.export.plans import PlanWriter, UnitNumbers, deciding_address, find_sizes, reserve_sizes
from weft.export.units import HINT, CodeUnit, made_by
from weft.export.weights import WeightLayout
from weft.ir import dims
from weft.ir.program import Branch, Loop, Step
from weft.ir.work import NativeSection

HEAD = ALIGNMENT  # bytes of a workspace before the first unit's: the word for errors
GAP = ALIGNMENT  # bytes that a workspace has to spare, so that it may begin anywhere


def driver_text(
    interface: Interface,
    whole: CodeUnit,
    weights: WeightLayout,
    observed: Sequence[tuple[CodeUnit, ObservedSizes]],
    small: WeightLayout,
) -> str:
    """All functions and tables of a model but those of its weights; `small` are the constants of what is observed."""
    run = DriverWriter(interface, weights)
    body = run.write(whole)
    observing = [run.write_observation(unit, small) for unit, _ in observed]
    plans = PlanWriter(interface, HEAD + GAP)
    tables = [
        f'@"{interface.name}.table{number}" = internal constant [{len(row)} x i64] '
        f"[{', '.join(f'i64 {value}' for value in row)}]"
        for row, number in run.tables.items()
    ]
    written = [plans.plan(unit, run.numbers[unit.number]) for unit in whole.everything()]
    written += [plans.plan(unit, run.numbers[unit.number]) for unit, _ in observed]
    content = b"".join(small.pieces())
    if content:
        tables.append(constant_text(f"{interface.name}.small", content))
    written += [*observing, plans.sizes(observed)]
    return "\n".join((*tables, *written, plans.queries(), LAUNCH_CODE.format(name=interface.name), body))


class DriverWriter(LaunchWriter):
    """Writes the function that runs a model, and learns which numbers its units need."""

    def __init__(self, interface: Interface, weights: WeightLayout) -> None:
        super().__init__(interface.name, weights)
        self.interface = interface
        self.numbers: dict[int, UnitNumbers] = {}

    def write(self, whole: CodeUnit) -> str:
        text = self.text
        targets = [Pointer(f"%output{number}") for number in range(len(self.interface.outputs))]
        sources = {port.value: Pointer(f"%input{number}") for number, port in enumerate(self.interface.inputs)}
        sources |= {port.value: Pointer(f"%deciding{number}") for number, port in enumerate(self.interface.deciding)}
        self.enter(whole, "%first", [sources[value] for value in whole.inputs], targets)
        self.own = self.numbers[whole.number]
        self.base = "%first"
        for port in (*self.interface.inputs, *self.interface.outputs):  # before it is known how many numbers there are
            elements = dims.product(port.shape)
            if not isinstance(elements, int):
                self.own.slot(elements)
        start = self._start(whole)
        word = text.assign("load i32, ptr %errors, align 4")
        text.fail_if(text.assign(f"icmp ne i32 {word}, 0"), BAD_INDEX)
        text.emit("ret i32 0")
        text.lines[:0] = start
        self._fill_marks()
        arguments = "ptr %model, ptr %given, ptr %inputs, ptr %outputs, ptr %workspace, i64 %bytes, ptr %parallel"
        written = text.definition(f'define i32 @"{self.name}_run_parallel"({arguments})')
        return "\n".join((written, _RUN.format(name=self.name)))

    def write_observation(self, unit: CodeUnit, small: WeightLayout) -> str:
        """A function that computes the one output of a unit that decides sizes, on memory of its own."""
        if not isinstance(unit.total, int):
            raise UnsupportedModelError("sizes come from tensors whose sizes are not known", hint=HINT)
        self.text, text = FunctionText(), self.text
        weights, self.weights, self.base = self.weights, small, ""
        numbers_of = {port.value: number for number, port in enumerate(self.interface.deciding)}
        sources = [Pointer(deciding_address(self.text, self.interface, numbers_of[value])) for value in unit.inputs]
        self.enter(unit, "%first", sources, [Pointer("%found")])
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
        self._fill_marks()
        arguments = "ptr %given, ptr %sizes, ptr %found, ptr %parallel"
        made = self.text.definition(f'define internal i32 @"{self.name}.observe{unit.number}"({arguments})')
        self.text, self.weights = text, weights
        return made

    def _allocate(self) -> None:
        self.text.emit(f"%buffers = alloca [{self.most_buffers} x ptr], align 16")
        self.text.emit("%total = alloca i64, align 8")
        self.text.emit("%work = alloca [3 x ptr], align 8")

    def _fill_marks(self) -> None:
        for number, numbers in self.numbers.items():
            mark, size = _mark(number), str(numbers.bytes)
            self.text.lines = [line.replace(mark, size) if mark in line else line for line in self.text.lines]

    def _start(self, whole: CodeUnit) -> list[str]:
        """Check what is given, find the parts of the workspace, and compute the numbers."""
        text, body = self.text, self.text.lines
        text.lines = []
        self._allocate()
        reserve_sizes(text, self.interface)
        for given in ("model", "workspace", *(["inputs"] if self.interface.inputs else []), "outputs"):
            text.fail_if(text.assign(f"icmp eq ptr %{given}, null"), NULL_ARGUMENT)
        text.emit("%weights = load ptr, ptr %model, align 8")
        text.fail_if(text.assign("icmp eq ptr %weights, null"), NOT_OPEN)
        least = HEAD + GAP + self.numbers[whole.number].bytes
        text.fail_if(text.assign(f"icmp ult i64 %bytes, {least}"), SMALL_WORKSPACE)
        address = text.assign("ptrtoint ptr %workspace to i64")
        gap = text.assign(f"and i64 {text.assign(f'sub i64 0, {address}')}, {ALIGNMENT - 1}")
        text.emit(f"%errors = getelementptr i8, ptr %workspace, i64 {gap}")
        text.emit(f"%first = getelementptr i8, ptr %errors, i64 {HEAD}")
        text.emit("store i32 0, ptr %errors, align 4")
        find_sizes(text, self.interface)
        self._call_plan(whole, "%first")
        needed = text.assign("load i64, ptr %total, align 8")
        text.fail_if(text.assign(f"icmp ult i64 %bytes, {needed}"), SMALL_WORKSPACE)
        for number in range(len(self.interface.deciding)):
            address = deciding_address(text, self.interface, number)
            text.emit(f"%deciding{number} = getelementptr i8, ptr {address}, i64 0")
        self._load_ports("input", self.interface.inputs)
        self._load_ports("output", self.interface.outputs)
        lines, text.lines = text.lines, body
        return lines

    def _load_ports(self, kind: str, ports: Sequence[Port]) -> None:
        text = self.text
        for number, port in enumerate(ports):
            place = text.assign(f"getelementptr ptr, ptr %{kind}s, i64 {number}")
            text.emit(f"%{kind}{number} = load ptr, ptr {place}, align 8")
            missing = text.assign(f"icmp eq ptr %{kind}{number}, null")
            elements = dims.product(port.shape)
            if elements == 0:
                continue
            if not isinstance(elements, int):
                some = text.assign(f"icmp ne i64 {self.number(elements)}, 0")
                missing = text.assign(f"and i1 {missing}, {some}")
            text.fail_if(missing, NULL_ARGUMENT)

    # -- units -------------------------------------------------------------------------------------------------------

    def _call_plan(self, unit: CodeUnit, base: str) -> None:
        call = f'call i32 @"{self.name}.plan{unit.number}"(ptr %sizes, ptr %total, ptr {base})'
        self.text.fail_with(self.text.assign(call))

    def enter(self, unit: CodeUnit, base: str, sources: Sequence[Pointer], targets: Sequence[Pointer]) -> None:
        """A unit whose memory is at an address, once its plan is there; its inputs and outputs are given."""
        around = (self.unit, self.own, self.base, self.arena) if self.base else None
        self.unit, self.own, self.base = unit, self.numbers.setdefault(unit.number, UnitNumbers()), base
        self.arena = self.text.assign(f"getelementptr i8, ptr {base}, i64 {_mark(unit.number)}")
        places = {owner: Pointer(self.arena, offset) for owner, offset in unit.offsets.items()}
        places.update(self.constant_places(unit))
        places.update(zip(unit.inputs, sources))
        made = {value for item in unit.items for value in made_by(item)}
        copies = []
        for value, target in zip(unit.outputs, targets, strict=True):
            if value in made:
                made.remove(value)
                places[value] = target
            else:
                copies.append((value, target))
        self.own.note_shapes([*unit.inputs, *unit.outputs], unit.bindings)
        for place, item in enumerate(unit.items):
            if isinstance(item, NativeSection):
                start = places[place, "section"]
                self.section(item, unit.layouts[place], places, start.offset, unit.bindings)
            else:
                self.own.note_shapes([*item.operands, *item.results], unit.bindings)
                self.step(item, place, unit.inside[place], places)
        for value, target in copies:
            self.move(places[value], target, value_bytes(value, unit.bindings))
        if around is not None:
            self.unit, self.own, self.base, self.arena = around

    def step(self, step: Step, place: int, inside: Sequence[CodeUnit], places: Mapping[object, Pointer]) -> None:
        """Control flow."""
        operands = [Pointer(self.address(places[value])) for value in step.operands]
        results = [Pointer(self.address(places.get(value, NOWHERE))) for value in step.results]
        room = self.address(places[place, "inside"])
        match step.primitive:
            case Branch(then, _):
                split = 1 + len(then.inputs)
                self.branch(operands[0], inside, (operands[1:split], operands[split:]), results, room)
            case Loop(_, carries):
                pairs = [
                    (self.address(places[place, number, 0]), self.address(places[place, number, 1]))
                    for number in range(carries)
                ]
                words = [self.address(places[place, what]) for what in ("count", "before", "after")]
                sizes = [
                    self.number(value_bytes(value, self.unit.bindings)) for value in step.operands[2 : 2 + carries]
                ]
                self.loop(inside[0], operands, results, room, pairs, words, sizes)

    def branch(
        self,
        condition: Pointer,
        inside: Sequence[CodeUnit],
        operands: Sequence[Sequence[Pointer]],
        results: Sequence[Pointer],
        room: str,
    ) -> None:
        text = self.text
        labels, after = [text.label("then"), text.label("otherwise")], text.label("after")
        flag = text.assign(f"load i8, ptr {condition.base}, align 1")
        text.choose(text.assign(f"icmp ne i8 {flag}, 0"), *labels)
        for label, unit, given in zip(labels, inside, operands, strict=True):
            text.begin(label)
            self._call_plan(unit, room)
            self.enter(unit, room, given, results)
            text.go(after)
        text.begin(after)

    def loop(
        self,
        body: CodeUnit,
        operands: Sequence[Pointer],
        results: Sequence[Pointer],
        room: str,
        pairs: Sequence[tuple[str, str]],
        words: Sequence[str],
        sizes: Sequence[str],
    ) -> None:
        """While it is told to, and so many times at most. Carries alternate between two places."""
        text = self.text
        trips, going, *given = operands
        carries, captures = given[: len(pairs)], given[len(pairs) :]
        count, before, going_on = words
        most = text.assign(f"load i64, ptr {trips.base}, align 8")
        flag = text.assign(f"load i8, ptr {going.base}, align 1")
        text.emit(f"store i8 {flag}, ptr {before}, align 1")
        some = text.assign(f"icmp sgt i64 {most}, 0")
        wanted = text.assign(f"icmp ne i8 {flag}, 0")
        first, turn, inside, latch, after = (text.label(hint) for hint in ("first", "turn", "inside", "latch", "after"))
        nothing = text.label("nothing")
        text.choose(text.assign(f"and i1 {some}, {wanted}"), first, nothing)
        text.begin(nothing)
        text.go(after)
        text.begin(first)
        self._call_plan(body, room)
        ready = text.label("ready")
        text.go(ready)
        text.begin(ready)
        text.go(turn)
        text.begin(turn)
        time, next_time = text.name("time"), text.name("time")
        text.emit(f"{time} = phi i64 [ 0, %{ready} ], [ {next_time}, %{latch} ]")
        text.go(inside)
        text.begin(inside)
        text.emit(f"store i64 {time}, ptr {count}, align 8")
        begins = text.assign(f"icmp eq i64 {time}, 0")
        odd = text.assign(f"trunc i64 {time} to i1")
        taken, made = [], []
        for carry, (even_place, odd_place) in zip(carries, pairs):
            earlier = text.assign(f"select i1 {odd}, ptr {even_place}, ptr {odd_place}")
            taken.append(Pointer(text.assign(f"select i1 {begins}, ptr {carry.base}, ptr {earlier}")))
            made.append(Pointer(text.assign(f"select i1 {odd}, ptr {odd_place}, ptr {even_place}")))
        self.enter(body, room, [Pointer(count), Pointer(before), *taken, *captures], [Pointer(going_on), *made])
        text.go(latch)
        text.begin(latch)
        text.emit(f"{next_time} = add i64 {time}, 1")
        told = text.assign(f"load i8, ptr {going_on}, align 1")
        text.emit(f"store i8 {told}, ptr {before}, align 1")
        again = text.assign(f"icmp slt i64 {next_time}, {most}")
        end = text.label("end")
        text.choose(text.assign(f"and i1 {again}, {text.assign(f'icmp ne i8 {told}, 0')}"), turn, end)
        text.begin(end)
        text.go(after)
        text.begin(after)
        turns = text.assign(f"phi i64 [ 0, %{nothing} ], [ {next_time}, %{end} ]")
        none = text.assign(f"icmp eq i64 {turns}, 0")
        last_odd = text.assign(f"trunc i64 {turns} to i1")
        for carry, (even_place, odd_place), result, size in zip(carries, pairs, results, sizes, strict=True):
            final = text.assign(f"select i1 {last_odd}, ptr {even_place}, ptr {odd_place}")
            self.move_bytes(text.assign(f"select i1 {none}, ptr {carry.base}, ptr {final}"), result.base, size)


def _mark(unit: int) -> str:
    """Stands for the bytes of a unit's numbers until they are known."""
    return f"<numbers of {unit}>"


_RUN = """
define i32 @"{name}_run"(ptr %model, ptr %given, ptr %inputs, ptr %outputs, ptr %workspace, i64 %bytes) nounwind {{
  %error = call i32 @"{name}_run_parallel"(ptr %model, ptr %given, ptr %inputs, ptr %outputs, ptr %workspace,
                                           i64 %bytes, ptr null)
  ret i32 %error
}}
"""
