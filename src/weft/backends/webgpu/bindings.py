"""The bindings of a shader: what its buffers are bound to, as WGSL that goes before the shader's own text.

One kernel may need several: a buffer larger than a binding may be lies in several bindings; buffers of one kernel that
are the same memory share one; and a buffer read in runs is read by single elements where it does not start at a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.backends.webgpu.library import Abilities, Library
from weft.backends.webgpu.shader import CHECK_BLOCK, Shader, element_of, run_of, shared_buffers
from weft.ir.kernel import Buffer, Kernel
from weft.records import dataclass

GROUP_BUFFERS = 1  # the number of the first buffer's binding; the parameters come before it


@dataclass(frozen=True, slots=True)
class Binding:
    """How a kernel's buffer is bound.

    `alias`: it is the same memory as the buffer of that name, which has the bindings. `segments`: how many bindings
    it takes, each of `segment` elements but the last. `aligned`: it starts at a multiple of its runs. `constant`: it
    lies where nothing is written.
    """

    alias: str | None = None
    segments: int = 1
    segment: int = 0
    aligned: bool = True
    constant: bool = False


PLAIN = Binding()


def header(kernel: Kernel, shader: Shader, ways: Mapping[str, Binding], abilities: Abilities) -> str:
    """Declarations for a kernel whose buffers are bound in given ways (PLAIN where nothing is said)."""
    buffers = shared_buffers(kernel)
    fields = ["blocks", *(f"o_{buffer.name}" for buffer in buffers), *(f"p_{name}" for name in kernel.parameters)]
    lines = [
        f"struct Parameters {{ {', '.join(f'{field}: i32' for field in fields)} }}",
        "@group(0) @binding(0) var<uniform> P: Parameters;",
    ]
    number = GROUP_BUFFERS
    homes: dict[str, _Home] = {}
    for buffer in buffers:
        way = ways.get(buffer.name, PLAIN)
        if way.alias is None:
            sharing = [b for b in buffers if b is buffer or ways.get(b.name, PLAIN).alias == buffer.name]
            home = _home(buffer, sharing, shader, ways, abilities)
            lines += home.declarations(number)
            number += way.segments
            homes[buffer.name] = home
    for buffer in buffers:
        way = ways.get(buffer.name, PLAIN)
        lines += homes[way.alias or buffer.name].accessors(buffer, shader.runs[buffer.name])
    return "\n".join(lines)


def module_text(
    kernel: Kernel, shader: Shader, ways: Mapping[str, Binding], abilities: Abilities, exact: bool = False
) -> str:
    """The whole shader; `exact` for dispatches of just as many groups as there are blocks."""
    lines = shader.text.split("\n")
    if exact:
        lines.remove(CHECK_BLOCK)
    enabling = [line for line in lines if line.startswith("enable ")]
    rest = [line for line in lines if not line.startswith("enable ")]
    if abilities.float16 and "enable f16;" not in enabling:
        enabling.append("enable f16;")
    return "\n".join([*enabling, header(kernel, shader, ways, abilities), *rest])


@dataclass(frozen=True, slots=True)
class _Home:
    """The bindings of a buffer, and of those that are the same memory."""

    name: str
    kind: str  # of an element, or of a word of packed ones
    width: int  # elements of a run that is read at once
    atomic: bool
    way: Binding
    per_word: int

    @property
    def element(self) -> str:
        if self.atomic:
            return f"atomic<{self.kind}>"
        return self.kind if self.width == 1 else f"vec{self.width}<{self.kind}>"

    def declarations(self, number: int) -> list[str]:
        access = "read" if self.way.constant else "read_write"
        return [
            f"@group(0) @binding({number + part}) var<storage, {access}> b_{self.name}{part}: array<{self.element}>;"
            for part in range(self.way.segments)
        ]

    def accessors(self, buffer: Buffer, run: int) -> list[str]:
        name = buffer.name
        lines = [f"fn word_{name}(i: i32) -> {self.kind} {{ {self._pick(self._read)} }}"]
        if buffer.written and self.atomic:
            lines.append(f"fn mark_{name}(i: i32, keep: u32, bits: u32) {{ {self._pick(self._mark)} }}")
        elif buffer.written:
            lines.append(f"fn set_{name}(i: i32, v: {self.kind}) {{ {self._pick(self._write)} }}")
        if run > 1:
            many = f"vec{run}<{self.kind}>"
            if self.width == run:
                lines.append(f"fn words_{name}(i: i32) -> {many} {{ {self._pick(self._read_run)} }}")
            else:
                parts = ", ".join(f"word_{name}(i + {part})" for part in range(run))
                lines.append(f"fn words_{name}(i: i32) -> {many} {{ return {many}({parts}); }}")
            if buffer.written and self.width == run:
                lines.append(f"fn setall_{name}(i: i32, v: {many}) {{ {self._pick(self._write_run)} }}")
            elif buffer.written:
                parts = " ".join(f"set_{name}(i + {part}, v[{part}]);" for part in range(run))
                lines.append(f"fn setall_{name}(i: i32, v: {many}) {{ {parts} }}")
        return lines

    def _pick(self, access: Callable[[int, str], str]) -> str:
        """The access in the binding that the element lies in."""
        segment = self.way.segment // self.per_word
        parts = [access(part, _moved(part * segment)) for part in range(self.way.segments)]
        *others, last = (part if part.startswith("return") else f"{part} return;" for part in parts)
        tests = [f"if (i < {(part + 1) * segment}) {{ {text} }} " for part, text in enumerate(others)]
        return "".join(tests) + last

    def _read(self, part: int, place: str) -> str:
        array = f"b_{self.name}{part}"
        if self.atomic:
            return f"return atomicLoad(&{array}[{place}]);"
        return f"return {array}{element_of(place, self.width)};"

    def _write(self, part: int, place: str) -> str:
        return f"b_{self.name}{part}{element_of(place, self.width)} = v;"

    def _mark(self, part: int, place: str) -> str:
        array = f"b_{self.name}{part}"
        return f"atomicAnd(&{array}[{place}], keep); atomicOr(&{array}[{place}], bits);"

    def _read_run(self, part: int, place: str) -> str:
        return f"return b_{self.name}{part}[{run_of(place, self.width)}];"

    def _write_run(self, part: int, place: str) -> str:
        return f"b_{self.name}{part}[{run_of(place, self.width)}] = v;"


def _moved(start: int) -> str:
    return "i" if start == 0 else f"i - {start}"


def _home(
    buffer: Buffer, sharing: list[Buffer], shader: Shader, ways: Mapping[str, Binding], abilities: Abilities
) -> _Home:
    library = Library(abilities)
    per_word = library.elements_in_word(buffer.dtype)
    widths = {shader.runs[one.name] for one in sharing if ways.get(one.name, PLAIN).aligned}
    uneven = any(not ways.get(one.name, PLAIN).aligned for one in sharing)
    width = 1 if uneven or per_word > 1 else max(widths)
    atomic = per_word > 1 and any(one.written for one in sharing)
    kind = library.storage_type(buffer.dtype)
    return _Home(buffer.name, kind, width, atomic, ways.get(buffer.name, PLAIN), per_word)
