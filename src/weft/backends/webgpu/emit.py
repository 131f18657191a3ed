"""Kernel -> WGSL: all of a shader but its bindings, which depend on where buffers lie (see bindings.py).

A block is a workgroup and a lane an invocation: a varying value is each invocation's own, a uniform one is computed by
all of them alike and written by the first. Indices are i32; an index that is a value of the data is an int64. Elements
are read and written through functions that the bindings bring: `word_x`, `set_x`, for what is packed `mark_x`, for runs
`words_x` and `setall_x`; `P` holds the number of blocks, where each buffer starts in its binding, and parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from string import Template

from weft.backends.short_indices import are_indices, fit, index_of, is_short
from weft.backends.webgpu.indices import FLOOR_DIV, Writer
from weft.backends.webgpu.library import Abilities, Library
from weft.backends.webgpu.shader import CHECK_BLOCK, Shader, element_of, run_of, run_widths, shared_buffers
from weft.backends.webgpu.trip_counts import describe_loops
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    Assign,
    Barrier,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    FetchRun,
    Integer,
    Kernel,
    Let,
    Number,
    Put,
    PutRun,
    Register,
    Repeat,
    Statement,
    Transpose,
    View,
    When,
    dims_vary,
    is_varying,
    read_buffers,
)
from weft.ir.scalar import COMPARISONS


def emit(kernel: Kernel, abilities: Abilities, subgroup: int = 0) -> Shader:
    """The shader of a kernel for adapters with given abilities, and subgroups of at most so many lanes (0: none)."""
    return _Emitter(kernel, abilities, subgroup).run()


class _Emitter:
    def __init__(self, kernel: Kernel, abilities: Abilities, subgroup: int) -> None:
        self.kernel = kernel
        self.library = Library(abilities)
        self.subgroup = subgroup
        self.builtins = list(_BUILTINS)
        self.runs = run_widths(kernel, abilities.float16)
        read = read_buffers(kernel.body)
        self.exchanges = any(b.written and b.local_size is None and b.name in read for b in kernel.buffers)
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}
        self.places: dict[str, tuple[str, str]] = {}  # of a buffer or view: the buffer, and where it starts
        self.writer = Writer()
        self.line, self.fresh, self.integer = self.writer.line, self.writer.fresh, self.writer.integer
        self.globals: dict[str, str] = {}  # declarations of the module, by what they declare
        self.shared: dict[str, int] = {}
        self.used: set[str] = set()  # of the buffers' accessors

    def run(self) -> Shader:
        for buffer in self.kernel.buffers:
            self.places[buffer.name] = (buffer.name, "0" if buffer.local_size is not None else f"o_{buffer.name}")
            if buffer.local_size is not None:
                width = self.runs[buffer.name]
                kind = _vector(_in_memory(self.library.register_type(buffer.dtype)), width)
                self.share(f"s_{buffer.name}", kind, -(-buffer.local_size // width))
        self.body(self.kernel.body)
        main = [
            f"@compute @workgroup_size({self.kernel.lanes})",
            f"fn main({', '.join(self.builtins)}) {{",
            "  let v_block = i32(group.x + group.y * groups.x);",
            "  let v_lane = i32(own);",
            CHECK_BLOCK,
            *(f"  let o_{buffer.name} = P.o_{buffer.name};" for buffer in shared_buffers(self.kernel)),
            *(f"  let v_{name} = P.p_{name};" for name in self.kernel.parameters),
            *self.writer.lines,
            "}",
        ]
        helpers = [self.accessors(buffer) for buffer in self.kernel.buffers if buffer.local_size is None]
        declared = [*self.globals.values(), *((FLOOR_DIV,) if self.writer.floors else ())]
        text = "\n".join([self.library.prelude(), *(text for text in helpers if text), *declared, *main, ""])
        return Shader(text, self.runs, sum(self.shared.values()), describe_loops(self.kernel.body))

    # -- statements --------------------------------------------------------------------------------------------------

    def body(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            match statement:
                case Define(name, value, _):
                    self.line(f"var r_{name}: {self.library.register_type(value.dtype)} = {self.code(value)};")
                case Assign(name, value):
                    self.line(f"r_{name} = {self.code(value)};")
                case Put():
                    self.put(statement)
                case PutRun():
                    self.put_run(statement)
                case FetchRun():
                    self.fetch_run(statement)
                case Repeat():
                    self.repeat(statement)
                case When(condition, then, otherwise):
                    self.when(condition, then, otherwise)
                case Let(name, value):
                    self.writer.name(name, value)
                case View(name, buffer, offset):
                    home, start = self.places[buffer]
                    place = self.fresh("i32", f"{start} + {self.integer(offset)}")
                    self.places[name] = (home, place)
                case Transpose(names):
                    self.transpose(names)
                case Barrier():
                    self.line("workgroupBarrier();")
                    if self.exchanges:
                        self.line("storageBarrier();")

    def repeat(self, loop: Repeat) -> None:
        name = f"v_{loop.variable}"
        start, stop = self.integer(loop.start), self.integer(loop.stop)
        head = f"for (var {name}: i32 = {start}; {name} < {stop}; {name} += {loop.step})"
        with self.scope(loop.variable) as lines:
            self.body(loop.body)
        self.writer.block(head, lines)

    def when(self, condition: Code, then: tuple[Statement, ...], otherwise: tuple[Statement, ...]) -> None:
        test = self.code(condition)
        with self.scope() as first:
            self.body(then)
        with self.scope() as second:
            self.body(otherwise)
        self.writer.block(f"if ({test})", first, "" if otherwise else "}")
        if otherwise:
            self.writer.block("} else", second)

    def transpose(self, names: Sequence[str]) -> None:
        """Through memory that the block shares."""
        dtype = self.register_dtypes(names[0])
        lanes, kind = self.kernel.lanes, self.library.register_type(dtype)
        square = f"turned_{kind}"
        self.share(square, _in_memory(kind), lanes * lanes)
        self.line("workgroupBarrier();")
        for number, name in enumerate(names):
            self.line(f"{square}[{number * lanes} + v_lane] = {_to_memory(f'r_{name}', kind)};")
        self.line("workgroupBarrier();")
        for number, name in enumerate(names):
            turned = f"{square}[v_lane * {lanes} + {number}]"
            self.line(f"r_{name} = {_from_memory(turned, kind)};")
        self.line("workgroupBarrier();")

    def register_dtypes(self, wanted: str) -> DType:
        pending = list(self.kernel.body)
        while pending:
            statement = pending.pop()
            match statement:
                case Define(name, value) if name == wanted:
                    return value.dtype
                case Repeat(_, _, _, _, inner):
                    pending.extend(inner)
                case When(_, then, otherwise):
                    pending.extend((*then, *otherwise))
        raise InternalError(f"kernel {self.kernel.name}: no register {wanted}")

    def share(self, name: str, kind: str, count: int) -> None:
        """Memory for all lanes of a block."""
        self.globals[name] = f"var<workgroup> {name}: array<{kind}, {count}>;"
        self.shared[name] = _bytes(kind) * count

    @contextmanager
    def scope(self, *names: str) -> Iterator[list[str]]:
        """The lines of a block; views are known only in it."""
        places = dict(self.places)
        with self.writer.inside(*names) as lines:
            yield lines
        self.places = places

    # -- memory ------------------------------------------------------------------------------------------------------

    def place(self, buffer: str, offset: Dim, indirect: Code | None) -> str:
        """Where an element lies, from the start of its binding."""
        _, start = self.places[buffer]
        parts = [part for part in (start, self.integer(offset)) if part != "0"]
        if indirect is not None:
            parts.append(self.library.to_index(self.code(indirect)))
        return " + ".join(parts) or "0"

    def run_number(self, buffer: str, offset: Dim, width: int) -> str:
        """The number of a run in memory of the block's own; exact, so that neighbours differ by numbers alone."""
        if self.places[buffer][1] == "0":
            return self.integer(dims.floordiv(offset, width))
        return run_of(self.place(buffer, offset, None), width)

    def put(self, put: Put) -> None:
        home = self.buffers[self.places[put.buffer][0]]
        place = self.fresh("i32", self.place(put.buffer, put.offset, put.indirect))
        value = self.code(put.value)
        varies = dims_vary(put.offset) or (put.indirect is not None and is_varying(put.indirect))
        conditions = [] if put.mask is None else [self.code(put.mask)]
        if not varies and self.kernel.lanes > 1:
            conditions.append("v_lane == 0")
        write = f"{self.store(home, place, value)}"
        self.line(f"if ({' && '.join(conditions)}) {{ {write} }}" if conditions else write)

    def store(self, buffer: Buffer, place: str, value: str) -> str:
        if buffer.local_size is not None:
            kind = self.library.register_type(buffer.dtype)
            return f"s_{buffer.name}{element_of(place, self.runs[buffer.name])} = {_to_memory(value, kind)};"
        self.used.add(f"put_{buffer.name}")
        return f"put_{buffer.name}({place}, {value});"

    def load(self, buffer: Buffer, place: str) -> str:
        if buffer.local_size is not None:
            kept = f"s_{buffer.name}{element_of(place, self.runs[buffer.name])}"
            return _from_memory(kept, self.library.register_type(buffer.dtype))
        self.used.add(f"get_{buffer.name}")
        return f"get_{buffer.name}({place})"

    def fetch(self, fetch: Fetch) -> str:
        """An element, under a name; without one where it is masked: the first of the buffer is read then."""
        home = self.buffers[self.places[fetch.buffer][0]]
        kind = self.library.register_type(fetch.dtype)
        place = self.place(fetch.buffer, fetch.offset, fetch.indirect)
        if fetch.mask is None:
            return self.fresh(kind, self.load(home, place))
        mask = self.fresh("bool", self.code(fetch.mask))
        start = self.places[fetch.buffer][1]
        loaded = self.load(home, f"select({start}, {place}, {mask})")
        return self.fresh(kind, f"select({self.library.literal(_zero(fetch.dtype), fetch.dtype)}, {loaded}, {mask})")

    def fetch_run(self, fetch: FetchRun) -> None:
        home = self.buffers[self.places[fetch.buffer][0]]
        width, kind = len(fetch.registers), self.library.register_type(fetch.dtype)
        if self.runs[home.name] == 1:
            for number, name in enumerate(fetch.registers):
                one = self.fetch(Fetch(fetch.buffer, fetch.offset + number, fetch.dtype, mask=fetch.mask))
                self.line(f"var r_{name}: {kind} = {one};")
            return
        place = self.place(fetch.buffer, fetch.offset, None)
        mask = None
        if fetch.mask is not None:
            mask = self.fresh("bool", self.code(fetch.mask))
            place = f"select({self.places[fetch.buffer][1]}, {place}, {mask})"
        many = _vector(kind, width)
        if home.local_size is not None:
            run = run_of(place, width) if mask is not None else self.run_number(fetch.buffer, fetch.offset, width)
            loaded = self.fresh(many, _from_memory(f"s_{home.name}[{run}]", kind, width))
        else:
            self.used.add(f"gets_{home.name}")
            loaded = self.fresh(many, f"gets_{home.name}({place})")
        if mask is not None:
            loaded = self.fresh(many, f"select({many}(), {loaded}, {mask})")
        for name, part in zip(fetch.registers, "xyzw"):
            self.line(f"var r_{name}: {kind} = {loaded}.{part};")

    def put_run(self, put: PutRun) -> None:
        home = self.buffers[self.places[put.buffer][0]]
        if self.runs[home.name] == 1:
            for number, value in enumerate(put.values):
                self.put(Put(put.buffer, put.offset + number, value, mask=put.mask))
            return
        width = len(put.values)
        kind = self.library.register_type(home.dtype)
        values = f"{_vector(kind, width)}({', '.join(self.code(value) for value in put.values)})"
        place = self.place(put.buffer, put.offset, None)
        if home.local_size is not None:
            run = self.run_number(put.buffer, put.offset, width)
            write = f"s_{home.name}[{run}] = {_to_memory(values, kind, width)};"
        else:
            self.used.add(f"puts_{home.name}")
            write = f"puts_{home.name}({place}, {values});"
        self.line(write if put.mask is None else f"if ({self.code(put.mask)}) {{ {write} }}")

    def accessors(self, buffer: Buffer) -> str:
        """Functions between registers and what the bindings hold."""
        name, dtype, library = buffer.name, buffer.dtype, self.library
        kind, width = library.register_type(dtype), self.runs[buffer.name]
        many, count = _vector(kind, width), library.elements_in_word(dtype)
        found: list[str] = []
        if f"get_{name}" in self.used:
            if count == 1:
                inside = f"return {library.loaded(f'word_{name}(i)', dtype)};"
            else:
                word = f"(word_{name}(i / {count}) >> (u32(i % {count}) * {32 // count}u)) & {_mask(count)}"
                inside = f"return {library.loaded(word, dtype)};"
            found.append(f"fn get_{name}(i: i32) -> {kind} {{ {inside} }}")
        if f"put_{name}" in self.used:
            stored = library.stored("v", dtype)
            if count == 1:
                inside = f"set_{name}(i, {stored});"
            else:
                shift = f"(u32(i % {count}) * {32 // count}u)"
                inside = f"mark_{name}(i / {count}, ~({_mask(count)} << {shift}), ({stored}) << {shift});"
            found.append(f"fn put_{name}(i: i32, v: {kind}) {{ {inside} }}")
        if f"gets_{name}" in self.used:
            found.append(f"fn gets_{name}(i: i32) -> {many} {{ return {many}(words_{name}(i)); }}")
        if f"puts_{name}" in self.used:
            stored_kind = _vector(library.storage_type(dtype), width)
            found.append(f"fn puts_{name}(i: i32, v: {many}) {{ setall_{name}(i, {stored_kind}(v)); }}")
        return "\n".join(found)

    # -- values ------------------------------------------------------------------------------------------------------

    def code(self, code: Code) -> str:
        match code:
            case Number(value, dtype):
                return self.library.literal(value, dtype)
            case Integer(value):
                return self.wide(value)
            case Register(name):
                return f"r_{name}"
            case Fetch():
                return self.fetch(code)
            case Across(kind, value):
                return self.fresh(self.library.register_type(value.dtype), self.across(kind, value))
            case Call(function, (left, right)) if function in COMPARISONS and are_indices(left, right):
                return f"({self.index(left)} {COMPARISONS[function]} {self.index(right)})"
            case Call("cast", (Integer(value),), DType.int32) if fit(value):
                return self.integer(value)
            case Call("cast", (Integer(value),), DType.float32) if fit(value) and is_short(value):
                return f"f32({self.integer(value)})"
            case Call(function, arguments, dtype):
                given = [self.code(argument) for argument in arguments]
                return self.library.call(function, given, [argument.dtype for argument in arguments], dtype)
        raise InternalError(f"no code for {code}")

    def index(self, code: Code) -> str:
        """A value that is index arithmetic, as an i32."""
        value = index_of(code)
        assert value is not None
        return self.integer(value)

    def across(self, kind: str, value: Code) -> str:
        """A call of the function that combines what all lanes have."""
        text = self.code(value)
        if self.kernel.lanes == 1:
            return text
        dtype = value.dtype
        register = self.library.register_type(dtype)
        name, memory = f"across_{kind}_{dtype.name}", f"shared_{dtype.name}"
        in_subgroups = self.subgroup and self.kernel.lanes % self.subgroup == 0 and register in _SHUFFLED
        self.share(memory, _in_memory(register), self.kernel.lanes)

        def held(place: str) -> str:
            return _from_memory(f"{memory}[{place}]", register)

        if in_subgroups:
            self.builtins = [*_BUILTINS, *_SUBGROUP_BUILTINS]
            both = self.library.combine(kind, dtype, "all", "subgroupShuffleXor(all, distance)")
            next_one = self.library.combine(kind, dtype, "all", held("number"))
            places = {"both": both, "next": next_one}
        else:
            both = self.library.combine(kind, dtype, held("own"), held("own + half"))
            places = {"both": _to_memory(both, register), "own": _to_memory("x", register), "first": held("0")}
        template = _ACROSS_SUBGROUPS if in_subgroups else _ACROSS
        places |= {"name": name, "kind": register, "memory": memory, "lanes": str(self.kernel.lanes)}
        self.globals[name] = template.substitute(places)
        return f"{name}({text}, {'sub_id, sub_size' if in_subgroups else 'v_lane'})"

    def wide(self, value: Dim) -> str:
        """Index arithmetic as an int64 of the data: exact, whatever comes out."""
        if isinstance(value, int):
            return self.library.literal(value, DType.int64)
        if fit(value) and is_short(value):
            return self.library.from_index(self.integer(value))
        total = ""
        for monomial, coefficient in value.terms:
            parts = [self.library.from_index(self.writer.atom(atom)) for atom in monomial]
            if coefficient != 1 or not parts:
                parts.append(self.library.literal(coefficient, DType.int64))
            term = parts[0]
            for part in parts[1:]:
                term = self.library.call("multiply", [term, part], [DType.int64] * 2, DType.int64)
            total = self.library.call("add", [total, term], [DType.int64] * 2, DType.int64) if total else term
        return total


_BUILTINS = (
    "@builtin(workgroup_id) group: vec3<u32>",
    "@builtin(num_workgroups) groups: vec3<u32>",
    "@builtin(local_invocation_index) own: u32",
)
_SUBGROUP_BUILTINS = ("@builtin(subgroup_id) sub_id: u32", "@builtin(subgroup_size) sub_size: u32")
_SHUFFLED = ("f32", "i32", "u32")  # what subgroups can exchange
_ACROSS = Template("""fn $name(x: $kind, own: i32) -> $kind {
  workgroupBarrier();
  $memory[own] = $own;
  workgroupBarrier();
  for (var left = $lanes; left > 1; left = (left + 1) / 2) {
    let half = (left + 1) / 2;
    if (own + half < left) { $memory[own] = $both; }
    workgroupBarrier();
  }
  return $first;
}""")
_ACROSS_SUBGROUPS = Template("""fn $name(x: $kind, sub_id: u32, sub_size: u32) -> $kind {
  var all = x;
  for (var distance = sub_size / 2u; distance > 0u; distance /= 2u) { all = $both; }
  if (sub_size >= ${lanes}u) { return all; }
  workgroupBarrier();
  $memory[sub_id] = all;
  workgroupBarrier();
  all = $memory[0];
  for (var number = 1u; number < ${lanes}u / sub_size; number++) { all = $next; }
  return all;
}""")


def _vector(kind: str, width: int) -> str:
    return kind if width == 1 else f"vec{width}<{kind}>"


def _in_memory(kind: str) -> str:
    """The type of what a block shares: NVIDIA's drivers read every bool there as false."""
    return "u32" if kind == "bool" else kind


def _to_memory(value: str, kind: str, width: int = 1) -> str:
    return f"{_vector('u32', width)}({value})" if kind == "bool" else value


def _from_memory(kept: str, kind: str, width: int = 1) -> str:
    return f"{_vector('bool', width)}({kept})" if kind == "bool" else kept


def _bytes(kind: str) -> int:
    """Of a value in memory that a block shares."""
    element, _, many = kind.partition("<")[::-1] if kind.startswith("vec") else (kind, "", "")
    count = int(many[3:]) if many else 1
    return count * (8 if element.rstrip(">").endswith("64") else 4)


def _mask(count: int) -> str:
    return {2: "0xffffu", 4: "0xffu"}[count]


def _zero(dtype: DType) -> bool | int | float:
    value: bool | int | float = dtype.numpy.type(0).item()
    return value
