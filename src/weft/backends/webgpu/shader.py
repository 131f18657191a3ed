"""A kernel's shader without bindings, and the facts about it that bindings and launches need."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Fetch, FetchRun, Kernel, Put, PutRun, Repeat, View, When, statement_codes, walk_code
from weft.records import dataclass

CHECK_BLOCK = "  if (v_block >= P.blocks) { return; }"  # removed if a dispatch has exactly as many workgroups
_RUN_TYPES = (DType.float32, DType.int32, DType.uint32)


@dataclass(frozen=True, slots=True)
class Shader:
    """WGSL without bindings."""

    text: str
    runs: Mapping[str, int]  # elements per access of each buffer
    shared_bytes: int  # workgroup memory
    loops: str  # see trip_counts.py

    def encode(self) -> bytes:
        runs = " ".join(f"{name}={width}" for name, width in self.runs.items())
        return f"// {self.shared_bytes} {runs}\n// {self.loops}\n{self.text}".encode()

    @staticmethod
    def decode(code: bytes) -> Shader:
        head, loops, text = code.decode().split("\n", 2)
        _, shared, *runs = head.split()
        pairs = (entry.split("=") for entry in runs)
        return Shader(text, {name: int(width) for name, width in pairs}, int(shared), loops[3:])


def list_bound_buffers(kernel: Kernel) -> list[Buffer]:
    """List the buffers that a launch binds, in order."""
    return [buffer for buffer in kernel.buffers if buffer.local_size is None]


def find_run_widths(kernel: Kernel, halves: bool) -> dict[str, int]:
    """Find the elements per access of each buffer: 1 unless all accesses are runs of the same width.

    Workgroup memory may be accessed by single elements as well. `halves`: the adapter has a type for float16.
    """
    widths: dict[str, set[int]] = {buffer.name: set() for buffer in kernel.buffers}
    homes = {buffer.name: buffer.name for buffer in kernel.buffers}
    pending = list(kernel.body)
    while pending:
        statement = pending.pop(0)
        for code in statement_codes(statement):
            for node in walk_code(code):
                if isinstance(node, Fetch):
                    widths[homes[node.buffer]].add(1)
        match statement:
            case Put(name):
                widths[homes[name]].add(1)
            case PutRun(name, _, values):
                widths[homes[name]].add(len(values))
            case FetchRun(names, name):
                widths[homes[name]].add(len(names))
            case View(name, buffer):
                homes[name] = homes[buffer]
            case Repeat(_, _, _, _, inner):
                pending = [*inner, *pending]
            case When(_, then, otherwise):
                pending = [*then, *otherwise, *pending]
    return {buffer.name: _run_width(buffer, widths[buffer.name], halves) for buffer in kernel.buffers}


def _run_width(buffer: Buffer, widths: set[int], halves: bool) -> int:
    runs = widths - {1} if buffer.local_size is not None else widths
    is_word = buffer.dtype in _RUN_TYPES or (halves and buffer.dtype is DType.float16)
    return next(iter(runs)) if runs in ({2}, {4}) and is_word else 1


def run_index(place: str, width: int) -> str:
    """Write the number of the run of an element."""
    return place if width == 1 else f"({place}) >> {width // 2}u"


def element_access(place: str, width: int) -> str:
    """Write the access to an element in an array of runs."""
    return f"[{place}]" if width == 1 else f"[{run_index(place, width)}][({place}) & {width - 1}]"
