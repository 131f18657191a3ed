"""Emit a kernel as WGSL, without its bindings, which depend on the memory of buffers (see bindings.py).

A block is a workgroup and a lane an invocation: each invocation has its own varying values; all of them compute uniform
values, and the first one stores them. Indices are i32; an index that comes from data is an int64. Elements are accessed
through functions of the bindings: `word_x` and `set_x`, `mark_x` for packed elements, `words_x` and `setall_x` for
runs. `P` holds the number of blocks, the start of each buffer in its binding, and parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from string import Template

from weft.backends.short_indices import are_indices, fit, index_of, is_short
from weft.backends.webgpu.indices import FLOOR_DIV, Writer
from weft.backends.webgpu.library import Abilities, Library
from weft.backends.webgpu.shader import (
    CHECK_BLOCK,
    Shader,
    element_access,
    find_run_widths,
    list_bound_buffers,
    run_index,
)
from weft.backends.webgpu.trip_counts import describe_loops
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    AcrossGroup,
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
    Prefetch,
    Put,
    PutRun,
    Register,
    Repeat,
    Statement,
    Transpose,
    View,
    When,
    dims_vary,
    inner_bodies,
    is_varying,
    read_buffers,
    statement_codes,
    walk_code,
)
from weft.ir.scalar import COMPARISONS


def emit(kernel: Kernel, abilities: Abilities) -> Shader:
    """Emit the shader of a kernel."""
    return _Emitter(kernel, abilities).emit()


class _Emitter:
    def __init__(self, kernel: Kernel, abilities: Abilities) -> None:
        self.kernel = kernel
        self.library = Library(abilities)
        self.subgroups = abilities.subgroups
        self.builtins = list(_BUILTINS)
        self.runs = find_run_widths(kernel, abilities.float16)
        read = read_buffers(kernel.body)
        self.has_storage_barrier = any(b.written and b.local_size is None and b.name in read for b in kernel.buffers)
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}
        self.locations: dict[str, tuple[str, str]] = {}  # of a buffer or view: the buffer, and its start
        self.writer = Writer()
        self.line, self.fresh, self.integer = self.writer.line, self.writer.fresh, self.writer.integer
        self.globals: dict[str, str] = {}  # declarations of the module, by name
        self.shared: dict[str, int] = {}  # bytes of workgroup memory
        self.used_accessors: set[str] = set()

    def emit(self) -> Shader:
        for buffer in self.kernel.buffers:
            self.locations[buffer.name] = (buffer.name, "0" if buffer.local_size is not None else f"o_{buffer.name}")
            if buffer.local_size is not None:
                width = self.runs[buffer.name]
                kind = _vector(_shared_type(self.library.register_type(buffer.dtype)), width)
                self.declare_shared(f"s_{buffer.name}", kind, -(-buffer.local_size // width))
        self.emit_body(self.kernel.body)
        main = [
            f"@compute @workgroup_size({self.kernel.lanes})",
            f"fn main({', '.join(self.builtins)}) {{",
            "  let v_block = i32(group.x + group.y * groups.x);",
            "  let v_lane = i32(own);",
            CHECK_BLOCK,
            *(f"  let o_{buffer.name} = P.o_{buffer.name};" for buffer in list_bound_buffers(self.kernel)),
            *(f"  let v_{name} = P.p_{name};" for name in self.kernel.parameters),
            *self.writer.lines,
            "}",
        ]
        helpers = [self.write_accessors(buffer) for buffer in self.kernel.buffers if buffer.local_size is None]
        declared = [*self.globals.values(), *((FLOOR_DIV,) if self.writer.floors else ())]
        text = "\n".join([self.library.prelude(), *(text for text in helpers if text), *declared, *main, ""])
        return Shader(text, self.runs, sum(self.shared.values()), describe_loops(self.kernel.body))

    # -- statements --------------------------------------------------------------------------------------------------

    def emit_body(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            match statement:
                case Define(name, value, _):
                    self.line(f"var r_{name}: {self.library.register_type(value.dtype)} = {self.emit_code(value)};")
                case Assign(name, value):
                    self.line(f"r_{name} = {self.emit_code(value)};")
                case Put():
                    self.emit_put(statement)
                case PutRun():
                    self.emit_put_run(statement)
                case FetchRun():
                    self.emit_fetch_run(statement)
                case Repeat():
                    self.emit_repeat(statement)
                case When(condition, then, otherwise):
                    self.emit_when(condition, then, otherwise)
                case Let(name, value):
                    self.writer.name(name, value)
                case View(name, buffer, offset):
                    home, start = self.locations[buffer]
                    place = self.fresh("i32", f"{start} + {self.integer(offset)}")
                    self.locations[name] = (home, place)
                case Transpose(names):
                    self.emit_transpose(names)
                case Prefetch():
                    pass  # WGSL has none
                case Barrier():
                    self.line("workgroupBarrier();")
                    if self.has_storage_barrier:
                        self.line("storageBarrier();")

    def emit_repeat(self, loop: Repeat) -> None:
        name = f"v_{loop.variable}"
        start, stop = self.integer(loop.start), self.integer(loop.stop)
        head = f"for (var {name}: i32 = {start}; {name} < {stop}; {name} += {loop.step})"
        with self.scope(loop.variable) as lines:
            self.emit_body(loop.body)
        self.writer.block(head, lines)

    def emit_when(self, condition: Code, then: tuple[Statement, ...], otherwise: tuple[Statement, ...]) -> None:
        test = self.emit_code(condition)
        if self.kernel.lanes > 1 and not _is_index_test(condition) and _has_barriers((*then, *otherwise)):
            self.declare_shared("uniform_test", "u32", 1)
            self.globals["test_uniformly"] = _TEST_UNIFORMLY
            test = f"test_uniformly({test}, v_lane)"
        with self.scope() as first:
            self.emit_body(then)
        with self.scope() as second:
            self.emit_body(otherwise)
        self.writer.block(f"if ({test})", first, "" if otherwise else "}")
        if otherwise:
            self.writer.block("} else", second)

    def emit_transpose(self, names: Sequence[str]) -> None:
        """Transpose through workgroup memory."""
        dtype = self.find_register_dtype(names[0])
        lanes, kind = self.kernel.lanes, self.library.register_type(dtype)
        square = f"turned_{kind}"
        self.declare_shared(square, _shared_type(kind), lanes * lanes)
        self.line("workgroupBarrier();")
        for number, name in enumerate(names):
            self.line(f"{square}[{number * lanes} + v_lane] = {_to_shared(f'r_{name}', kind)};")
        self.line("workgroupBarrier();")
        for number, name in enumerate(names):
            element = f"{square}[v_lane * {lanes} + {number}]"
            self.line(f"r_{name} = {_from_shared(element, kind)};")
        self.line("workgroupBarrier();")

    def find_register_dtype(self, register: str) -> DType:
        pending = list(self.kernel.body)
        while pending:
            statement = pending.pop()
            match statement:
                case Define(name, value) if name == register:
                    return value.dtype
                case Repeat(_, _, _, _, inner):
                    pending.extend(inner)
                case When(_, then, otherwise):
                    pending.extend((*then, *otherwise))
        raise InternalError(f"kernel {self.kernel.name}: no register {register}")

    def declare_shared(self, name: str, kind: str, count: int) -> None:
        """Declare workgroup memory."""
        self.globals[name] = f"var<workgroup> {name}: array<{kind}, {count}>;"
        self.shared[name] = _shared_bytes(kind) * count

    @contextmanager
    def scope(self, *names: str) -> Iterator[list[str]]:
        """Collect the lines of a block, which ends the views defined in it."""
        places = dict(self.locations)
        with self.writer.inside(*names) as lines:
            yield lines
        self.locations = places

    # -- memory ------------------------------------------------------------------------------------------------------

    def write_position(self, buffer: str, offset: Dim, indirect: Code | None) -> str:
        """Write the position of an element in its binding."""
        _, start = self.locations[buffer]
        parts = [part for part in (start, self.integer(offset)) if part != "0"]
        if indirect is not None:
            parts.append(self.library.to_index(self.emit_code(indirect)))
        return " + ".join(parts) or "0"

    def write_run_index(self, buffer: str, offset: Dim, width: int) -> str:
        """Write the number of a run in workgroup memory; divided exactly, so that neighbours differ by constants."""
        if self.locations[buffer][1] == "0":
            return self.integer(dims.floordiv(offset, width))
        return run_index(self.write_position(buffer, offset, None), width)

    def emit_put(self, put: Put) -> None:
        home = self.buffers[self.locations[put.buffer][0]]
        place = self.fresh("i32", self.write_position(put.buffer, put.offset, put.indirect))
        value = self.emit_code(put.value)
        varies = dims_vary(put.offset) or (put.indirect is not None and is_varying(put.indirect))
        conditions = [] if put.mask is None else [self.emit_code(put.mask)]
        if not varies and self.kernel.lanes > 1:
            conditions.append("v_lane == 0")
        write = f"{self.write_store(home, place, value)}"
        self.line(f"if ({' && '.join(conditions)}) {{ {write} }}" if conditions else write)

    def write_store(self, buffer: Buffer, place: str, value: str) -> str:
        if buffer.local_size is not None:
            kind = self.library.register_type(buffer.dtype)
            return f"s_{buffer.name}{element_access(place, self.runs[buffer.name])} = {_to_shared(value, kind)};"
        self.used_accessors.add(f"put_{buffer.name}")
        return f"put_{buffer.name}({place}, {value});"

    def write_load(self, buffer: Buffer, place: str) -> str:
        if buffer.local_size is not None:
            element = f"s_{buffer.name}{element_access(place, self.runs[buffer.name])}"
            return _from_shared(element, self.library.register_type(buffer.dtype))
        self.used_accessors.add(f"get_{buffer.name}")
        return f"get_{buffer.name}({place})"

    def emit_fetch(self, fetch: Fetch) -> str:
        """Load an element and name it; where it is masked, load the buffer's first element and use 0."""
        home = self.buffers[self.locations[fetch.buffer][0]]
        kind = self.library.register_type(fetch.dtype)
        place = self.write_position(fetch.buffer, fetch.offset, fetch.indirect)
        if fetch.mask is None:
            return self.fresh(kind, self.write_load(home, place))
        mask = self.fresh("bool", self.emit_code(fetch.mask))
        start = self.locations[fetch.buffer][1]
        loaded = self.write_load(home, f"select({start}, {place}, {mask})")
        return self.fresh(kind, f"select({self.library.literal(_zero(fetch.dtype), fetch.dtype)}, {loaded}, {mask})")

    def emit_fetch_run(self, fetch: FetchRun) -> None:
        home = self.buffers[self.locations[fetch.buffer][0]]
        width, kind = len(fetch.registers), self.library.register_type(fetch.dtype)
        if self.runs[home.name] == 1:
            for number, name in enumerate(fetch.registers):
                element = self.emit_fetch(
                    Fetch(fetch.buffer, fetch.offset + number, fetch.dtype, fetch.indirect, fetch.mask)
                )
                self.line(f"var r_{name}: {kind} = {element};")
            return
        place = self.write_position(fetch.buffer, fetch.offset, fetch.indirect)
        mask = None
        if fetch.mask is not None:
            mask = self.fresh("bool", self.emit_code(fetch.mask))
            place = f"select({self.locations[fetch.buffer][1]}, {place}, {mask})"
        many = _vector(kind, width)
        if home.local_size is not None:
            run = (
                run_index(place, width) if mask is not None else self.write_run_index(fetch.buffer, fetch.offset, width)
            )
            loaded = self.fresh(many, _from_shared(f"s_{home.name}[{run}]", kind, width))
        else:
            self.used_accessors.add(f"gets_{home.name}")
            loaded = self.fresh(many, f"gets_{home.name}({place})")
        if mask is not None:
            loaded = self.fresh(many, f"select({many}(), {loaded}, {mask})")
        for name, part in zip(fetch.registers, "xyzw"):
            self.line(f"var r_{name}: {kind} = {loaded}.{part};")

    def emit_put_run(self, put: PutRun) -> None:
        home = self.buffers[self.locations[put.buffer][0]]
        if self.runs[home.name] == 1:
            for number, value in enumerate(put.values):
                self.emit_put(Put(put.buffer, put.offset + number, value, mask=put.mask))
            return
        width = len(put.values)
        kind = self.library.register_type(home.dtype)
        values = f"{_vector(kind, width)}({', '.join(self.emit_code(value) for value in put.values)})"
        place = self.write_position(put.buffer, put.offset, None)
        if home.local_size is not None:
            run = self.write_run_index(put.buffer, put.offset, width)
            write = f"s_{home.name}[{run}] = {_to_shared(values, kind, width)};"
        else:
            self.used_accessors.add(f"puts_{home.name}")
            write = f"puts_{home.name}({place}, {values});"
        self.line(write if put.mask is None else f"if ({self.emit_code(put.mask)}) {{ {write} }}")

    def write_accessors(self, buffer: Buffer) -> str:
        """Write the functions that convert between registers and elements of the bindings."""
        name, dtype, library = buffer.name, buffer.dtype, self.library
        kind, width = library.register_type(dtype), self.runs[buffer.name]
        many, count = _vector(kind, width), library.elements_in_word(dtype)
        accessors: list[str] = []
        if f"get_{name}" in self.used_accessors:
            if count == 1:
                inside = f"return {library.loaded(f'word_{name}(i)', dtype)};"
            else:
                word = f"(word_{name}(i / {count}) >> (u32(i % {count}) * {32 // count}u)) & {_element_mask(count)}"
                inside = f"return {library.loaded(word, dtype)};"
            accessors.append(f"fn get_{name}(i: i32) -> {kind} {{ {inside} }}")
        if f"put_{name}" in self.used_accessors:
            stored = library.stored("v", dtype)
            if count == 1:
                inside = f"set_{name}(i, {stored});"
            else:
                shift = f"(u32(i % {count}) * {32 // count}u)"
                inside = f"mark_{name}(i / {count}, ~({_element_mask(count)} << {shift}), ({stored}) << {shift});"
            accessors.append(f"fn put_{name}(i: i32, v: {kind}) {{ {inside} }}")
        if f"gets_{name}" in self.used_accessors:
            accessors.append(f"fn gets_{name}(i: i32) -> {many} {{ return {many}(words_{name}(i)); }}")
        if f"puts_{name}" in self.used_accessors:
            stored_kind = _vector(library.storage_type(dtype), width)
            accessors.append(f"fn puts_{name}(i: i32, v: {many}) {{ setall_{name}(i, {stored_kind}(v)); }}")
        return "\n".join(accessors)

    # -- values ------------------------------------------------------------------------------------------------------

    def emit_code(self, code: Code) -> str:
        match code:
            case Number(value, dtype):
                return self.library.literal(value, dtype)
            case Integer(value):
                return self.emit_int64(value)
            case Register(name):
                return f"r_{name}"
            case Fetch():
                return self.emit_fetch(code)
            case Across(kind, value):
                return self.fresh(self.library.register_type(value.dtype), self.emit_across(kind, value))
            case AcrossGroup():
                return self.fresh(self.library.register_type(code.dtype), self.emit_across_group(code))
            case Call(function, (left, right)) if function in COMPARISONS and are_indices(left, right):
                return f"({self.emit_index(left)} {COMPARISONS[function]} {self.emit_index(right)})"
            case Call("cast", (Integer(value),), DType.int32) if fit(value):
                return self.integer(value)
            case Call("cast", (Integer(value),), DType.float32) if fit(value) and is_short(value):
                return f"f32({self.integer(value)})"
            case Call(function, arguments, dtype):
                texts = [self.emit_code(argument) for argument in arguments]
                return self.library.call(function, texts, [argument.dtype for argument in arguments], dtype)
        raise InternalError(f"no code for {code}")

    def emit_index(self, code: Code) -> str:
        """Emit a value that is index arithmetic as an i32."""
        value = index_of(code)
        assert value is not None
        return self.integer(value)

    def emit_across(self, kind: str, value: Code) -> str:
        """Emit a call of the function that reduces the values of all lanes."""
        text = self.emit_code(value)
        if self.kernel.lanes == 1:
            return text
        dtype, lanes = value.dtype, self.kernel.lanes
        register = self.library.register_type(dtype)
        name, memory = f"across_{kind}_{dtype.name}", f"shared_{dtype.name}"
        self.declare_shared(memory, _shared_type(register), lanes)
        values = {"name": name, "kind": register, "memory": memory, "lanes": str(lanes)}
        if self.has_shuffles(register):
            values["both"] = self.library.combine(kind, dtype, "all", _SHUFFLE)
            self.globals[name] = _ACROSS_SUBGROUPS.substitute(values)
            return f"{name}({text}, sub_id, sub_own, sub_size)"

        def load(position: str) -> str:
            return _from_shared(f"{memory}[{position}]", register)

        both = self.library.combine(kind, dtype, load("own"), load("own + half"))
        values |= {"both": _to_shared(both, register), "own": _to_shared("x", register), "first": load("0")}
        self.globals[name] = _ACROSS.substitute(values)
        return f"{name}({text}, v_lane)"

    def emit_across_group(self, across: AcrossGroup) -> str:
        """Emit a call of the function that reduces the values of each group of lanes."""
        text = self.emit_code(across.value)
        kind, dtype, lanes = across.kind, across.dtype, self.kernel.lanes
        register = self.library.register_type(dtype)
        name, memory = f"across_{kind}_{dtype.name}_{across.members}_{across.step}", f"turns_{dtype.name}"
        self.declare_shared(memory, _shared_type(register), 2 * lanes)
        other = _from_shared(f"{memory}[turn + (own ^ distance)]", register)
        values = {"name": name, "kind": register, "memory": memory, "lanes": str(lanes)}
        values |= {
            "step": str(across.step),
            "end": str(across.step * across.members),
            "all": _to_shared("all", register),
        }
        values["both"] = self.library.combine(kind, dtype, "all", other)
        has_shuffles = self.has_shuffles(register)
        values["shuffles"], values["size"] = "", ""
        if has_shuffles:
            values["shuffles"] = _GROUP_SHUFFLES.substitute(
                both=self.library.combine(kind, dtype, "all", _SHUFFLE), end=values["end"]
            )
            values["size"] = ", sub_size: u32"
        self.globals[name] = _ACROSS_GROUP.substitute(values)
        return f"{name}({text}, own{', sub_size' if has_shuffles else ''})"

    def has_shuffles(self, register: str) -> bool:
        """Whether lanes exchange values of a type in subgroups; if so, add the inputs that describe them."""
        lanes = self.kernel.lanes
        if not self.subgroups or lanes & (lanes - 1) or register not in _SHUFFLE_TYPES:
            return False
        self.builtins = [*_BUILTINS, *_SUBGROUP_BUILTINS]
        return True

    def emit_int64(self, value: Dim) -> str:
        """Emit index arithmetic as an int64, exact even where an i32 would overflow."""
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
_SUBGROUP_BUILTINS = (
    "@builtin(subgroup_id) sub_id: u32",
    "@builtin(subgroup_invocation_id) sub_own: u32",
    "@builtin(subgroup_size) sub_size: u32",
)
_SHUFFLE_TYPES = ("f32", "i32", "u32")
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
# Subgroups may have any power of two of lanes, also more than the workgroup. The order of combination is that of a
# binary tree over the lanes, so that results do not depend on the size.
_ACROSS_SUBGROUPS = Template("""fn $name(x: $kind, sub_id: u32, sub_own: u32, sub_size: u32) -> $kind {
  var all = x;
  for (var distance = 1u; distance < min(sub_size, ${lanes}u); distance *= 2u) { all = $both; }
  for (var count = ${lanes}u / sub_size; count > 1u; count /= sub_size) {
    workgroupBarrier();
    if (sub_own == 0u) { $memory[sub_id] = all; }
    workgroupBarrier();
    all = $memory[(sub_id * sub_size + sub_own) % count];
    for (var distance = 1u; distance < min(sub_size, count); distance *= 2u) { all = $both; }
  }
  return all;
}""")
_SHUFFLE = "subgroupShuffleXor(all, distance)"
_GROUP_SHUFFLES = Template("""
  for (; distance < min(sub_size, ${end}u); distance *= 2u) { all = $both; }""")
_ACROSS_GROUP = Template("""fn $name(x: $kind, own: u32$size) -> $kind {
  var all = x;
  var distance = ${step}u;$shuffles
  if (distance >= ${end}u) { return all; }
  workgroupBarrier();
  for (var turn = 0u; distance < ${end}u; distance *= 2u) {
    $memory[turn + own] = $all;
    workgroupBarrier();
    all = $both;
    turn = ${lanes}u - turn;
  }
  return all;
}""")
# Compilers cannot see that a condition on data is uniform, and refuse barriers behind it.
_TEST_UNIFORMLY = """fn test_uniformly(x: bool, own: i32) -> bool {
  if (own == 0) { uniform_test[0] = u32(x); }
  return workgroupUniformLoad(&uniform_test[0]) != 0u;
}"""


def _is_index_test(condition: Code) -> bool:
    """Tell whether a condition is on indices alone."""
    return not any(isinstance(node, (Register, Fetch, Across, AcrossGroup)) for node in walk_code(condition))


def _has_barriers(body: Iterable[Statement]) -> bool:
    """Tell whether the lanes wait for each other in a body."""
    return any(
        isinstance(statement, (Barrier, Transpose))
        or any(
            isinstance(node, (Across, AcrossGroup)) for code in statement_codes(statement) for node in walk_code(code)
        )
        or any(_has_barriers(inner) for inner in inner_bodies(statement))
        for statement in body
    )


def _vector(kind: str, width: int) -> str:
    return kind if width == 1 else f"vec{width}<{kind}>"


def _shared_type(kind: str) -> str:
    """Return the type of a value in workgroup memory: NVIDIA's drivers read every bool there as false."""
    return "u32" if kind == "bool" else kind


def _to_shared(value: str, kind: str, width: int = 1) -> str:
    return f"{_vector('u32', width)}({value})" if kind == "bool" else value


def _from_shared(element: str, kind: str, width: int = 1) -> str:
    return f"{_vector('bool', width)}({element})" if kind == "bool" else element


def _shared_bytes(kind: str) -> int:
    """Return the size of a value in workgroup memory."""
    element, _, many = kind.partition("<")[::-1] if kind.startswith("vec") else (kind, "", "")
    count = int(many[3:]) if many else 1
    return count * (8 if element.rstrip(">").endswith("64") else 4)


def _element_mask(count: int) -> str:
    return {2: "0xffffu", 4: "0xffu"}[count]


def _zero(dtype: DType) -> bool | int | float:
    value: bool | int | float = dtype.numpy.type(0).item()
    return value
