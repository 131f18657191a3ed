"""The bindings of a shader as WGSL, which precedes the shader's own text.

One kernel may need several variants: a buffer larger than a binding is split into several bindings; buffers that are
the same memory share one; and a buffer with unaligned runs is accessed by single elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.backends.webgpu.library import Abilities, Library
from weft.backends.webgpu.shader import CHECK_BLOCK, Shader, element_access, list_bound_buffers, run_index
from weft.backends.webgpu.wgsl_types import list_directives
from weft.ir.kernel import Buffer, Kernel
from weft.records import dataclass

FIRST_BUFFER = 1  # binding 0 is for the parameters


@dataclass(frozen=True, slots=True)
class Binding:
    """How a kernel's buffer is bound.

    `alias`: the buffer whose bindings it shares, being the same memory. `segments`: the number of bindings, each of
    `segment` elements but the last. `aligned`: it starts at a multiple of its runs. `constant`: nothing writes to its
    memory.
    """

    alias: str | None = None
    segments: int = 1
    segment: int = 0
    aligned: bool = True
    constant: bool = False


PLAIN = Binding()


def write_bindings(kernel: Kernel, shader: Shader, bindings: Mapping[str, Binding], abilities: Abilities) -> str:
    """Write the declarations of a kernel's bindings; PLAIN is the default of `bindings`."""
    buffers = list_bound_buffers(kernel)
    fields = ["blocks", *(f"o_{buffer.name}" for buffer in buffers), *(f"p_{name}" for name in kernel.parameters)]
    lines = [
        f"struct Parameters {{ {', '.join(f'{field}: i32' for field in fields)} }}",
        "@group(0) @binding(0) var<uniform> P: Parameters;",
    ]
    number = FIRST_BUFFER
    storages: dict[str, _Storage] = {}
    for buffer in buffers:
        binding = bindings.get(buffer.name, PLAIN)
        if binding.alias is None:
            sharing = [b for b in buffers if b is buffer or bindings.get(b.name, PLAIN).alias == buffer.name]
            storage = _build_storage(buffer, sharing, shader, bindings, abilities)
            lines += storage.declarations(number)
            number += binding.segments
            storages[buffer.name] = storage
    for buffer in buffers:
        binding = bindings.get(buffer.name, PLAIN)
        lines += storages[binding.alias or buffer.name].accessors(buffer, shader.runs[buffer.name])
    return "\n".join(lines)


def write_module(
    kernel: Kernel, shader: Shader, bindings: Mapping[str, Binding], abilities: Abilities, exact: bool = False
) -> str:
    """Write the whole shader; `exact`: dispatches have exactly as many workgroups as there are blocks."""
    lines = shader.text.split("\n")
    if exact:
        lines.remove(CHECK_BLOCK)
    text = "\n".join([write_bindings(kernel, shader, bindings, abilities), *lines])
    return "\n".join([*list_directives(text, abilities), text])


@dataclass(frozen=True, slots=True)
class _Storage:
    """The bindings of a buffer and its aliases."""

    name: str
    kind: str  # type of an element, or of a word of packed elements
    width: int  # elements of a run
    atomic: bool
    binding: Binding
    per_word: int

    @property
    def element(self) -> str:
        if self.atomic:
            return f"atomic<{self.kind}>"
        return self.kind if self.width == 1 else f"vec{self.width}<{self.kind}>"

    def declarations(self, number: int) -> list[str]:
        access = "read" if self.binding.constant else "read_write"
        return [
            f"@group(0) @binding({number + part}) var<storage, {access}> b_{self.name}{part}: array<{self.element}>;"
            for part in range(self.binding.segments)
        ]

    def accessors(self, buffer: Buffer, run: int) -> list[str]:
        name = buffer.name
        lines = [f"fn word_{name}(i: i32) -> {self.kind} {{ {self._select_segment(self._read)} }}"]
        if buffer.written and self.atomic:
            lines.append(
                f"fn mark_{name}(i: i32, keep: u32, bits: u32) {{ {self._select_segment(self._update_bits)} }}"
            )
        elif buffer.written:
            lines.append(f"fn set_{name}(i: i32, v: {self.kind}) {{ {self._select_segment(self._write)} }}")
        if run > 1:
            many = f"vec{run}<{self.kind}>"
            if self.width == run:
                lines.append(f"fn words_{name}(i: i32) -> {many} {{ {self._select_segment(self._read_run)} }}")
            else:
                parts = ", ".join(f"word_{name}(i + {part})" for part in range(run))
                lines.append(f"fn words_{name}(i: i32) -> {many} {{ return {many}({parts}); }}")
            if buffer.written and self.width == run:
                lines.append(f"fn setall_{name}(i: i32, v: {many}) {{ {self._select_segment(self._write_run)} }}")
            elif buffer.written:
                parts = " ".join(f"set_{name}(i + {part}, v[{part}]);" for part in range(run))
                lines.append(f"fn setall_{name}(i: i32, v: {many}) {{ {parts} }}")
        return lines

    def _select_segment(self, access: Callable[[int, str], str]) -> str:
        """Write an access to the segment that an element is in."""
        segment = self.binding.segment // self.per_word
        parts = [access(part, _shift_index(part * segment)) for part in range(self.binding.segments)]
        *others, last = (part if part.startswith("return") else f"{part} return;" for part in parts)
        tests = [f"if (i < {(part + 1) * segment}) {{ {text} }} " for part, text in enumerate(others)]
        return "".join(tests) + last

    def _read(self, part: int, place: str) -> str:
        array = f"b_{self.name}{part}"
        if self.atomic:
            return f"return atomicLoad(&{array}[{place}]);"
        return f"return {array}{element_access(place, self.width)};"

    def _write(self, part: int, place: str) -> str:
        return f"b_{self.name}{part}{element_access(place, self.width)} = v;"

    def _update_bits(self, part: int, place: str) -> str:
        array = f"b_{self.name}{part}"
        return f"atomicAnd(&{array}[{place}], keep); atomicOr(&{array}[{place}], bits);"

    def _read_run(self, part: int, place: str) -> str:
        return f"return b_{self.name}{part}[{run_index(place, self.width)}];"

    def _write_run(self, part: int, place: str) -> str:
        return f"b_{self.name}{part}[{run_index(place, self.width)}] = v;"


def _shift_index(start: int) -> str:
    return "i" if start == 0 else f"i - {start}"


def _build_storage(
    buffer: Buffer, sharing: list[Buffer], shader: Shader, bindings: Mapping[str, Binding], abilities: Abilities
) -> _Storage:
    library = Library(abilities)
    per_word = library.elements_in_word(buffer.dtype)
    widths = {shader.runs[alias.name] for alias in sharing if bindings.get(alias.name, PLAIN).aligned}
    uneven = any(not bindings.get(alias.name, PLAIN).aligned for alias in sharing)
    width = 1 if uneven or per_word > 1 else max(widths)
    atomic = per_word > 1 and any(alias.written for alias in sharing)
    kind = library.storage_type(buffer.dtype)
    return _Storage(buffer.name, kind, width, atomic, bindings.get(buffer.name, PLAIN), per_word)
