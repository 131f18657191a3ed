"""The interface through which the emitter writes code that depends on what a lane is.

Control flow, index arithmetic and scalar functions are the same for all devices (emit.py). Varying values, function
prologues, memory accesses and communication between lanes differ: lanes are the elements of vectors on a CPU
(vector_lanes.py), and threads on a GPU (thread_lanes.py). Lanes have no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.builder import IRBuilder
from weft.backends.llvm.instructions import Value
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import AcrossGroup, Call, Code, Fetch, FetchRun, Kernel, Put, PutRun, TileStatement

if TYPE_CHECKING:
    from weft.backends.llvm.emit import Emitter


class Lanes(ABC):
    """Emits LLVM IR for the lanes of a block."""

    @property
    @abstractmethod
    def index(self) -> ir.IntType:
        """The type of index arithmetic."""

    @abstractmethod
    def declare(self, kernel: Kernel, module: ir.Module) -> ir.Function:
        """Declare the kernel's function."""

    @abstractmethod
    def builder(self, block: ir.Block) -> IRBuilder:
        """Create a builder that appends to a block."""

    @abstractmethod
    def emit_function(self, emitter: Emitter) -> None:
        """Emit the whole function: buffers and parameters, the body for each block, and the return."""

    # -- values ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def lane_index(self, emitter: Emitter) -> Value:
        """Return the lane's number as an index."""

    @abstractmethod
    def broadcast(self, emitter: Emitter, value: Value) -> Value:
        """Return a value, uniform or not, as a varying one."""

    @abstractmethod
    def emit_int64(self, emitter: Emitter, value: Dim) -> Value:
        """Emit index arithmetic as an int64."""

    @abstractmethod
    def emit_position(self, emitter: Emitter, indirect: Code) -> Value:
        """Emit an int64 expression as an index."""

    @abstractmethod
    def compare_indices(self, emitter: Emitter, call: Call) -> Value | None:
        """Emit a comparison of indices; None to compare them as int64."""

    @abstractmethod
    def dot4(self, emitter: Emitter, unsigned: Value, signed: Value, total: Value) -> Value:
        """Add the dot product of four uint8 and four int8, each four packed in an int32."""

    @abstractmethod
    def dot2(self, emitter: Emitter, left: Value, right: Value, total: Value) -> Value:
        """Add the dot product of two pairs of bfloat16, each packed in an int32."""

    @abstractmethod
    def round_to_bfloat16(self, emitter: Emitter, value: Value) -> Value:
        """Round a float to bfloat16, as 16 bits."""

    @abstractmethod
    def decode_integer(self, emitter: Emitter, code: Value, bits: int) -> Value:
        """Convert the lowest bits of an int32, as an integer with a bias of half its range, to a float."""

    @abstractmethod
    def compute_pairs(self, emitter: Emitter, function: str, values: Sequence[Value]) -> Value:
        """Compute `fma_bfloat16x2`, `fma_float16x2` or `and_or` of words with pairs of 16-bit floats."""

    # -- memory ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def bind_view(self, emitter: Emitter, address: Value) -> Value:
        """Return the start of a view in the form in which it is kept."""

    @abstractmethod
    def fetch(self, emitter: Emitter, fetch: Fetch) -> Value:
        """Load an element of a buffer."""

    @abstractmethod
    def fetch_run(self, emitter: Emitter, fetch: FetchRun) -> list[Value]:
        """Load neighbouring elements of a buffer, as varying values."""

    @abstractmethod
    def put(self, emitter: Emitter, put: Put) -> None: ...

    @abstractmethod
    def put_run(self, emitter: Emitter, put: PutRun) -> None: ...

    # -- between lanes -----------------------------------------------------------------------------------------------

    @abstractmethod
    def across(self, emitter: Emitter, kind: str, value: Value, dtype: DType) -> Value:
        """Reduce the values of all lanes, always in the same order."""

    @abstractmethod
    def across_group(self, emitter: Emitter, across: AcrossGroup, value: Value) -> Value:
        """Reduce the values of each group of lanes."""

    @abstractmethod
    def transpose(self, emitter: Emitter, rows: list[Value]) -> list[Value]:
        """Transpose a square: exchange row j of lane i with row i of lane j."""

    @abstractmethod
    def prefetch(self, emitter: Emitter, start: Value, nbytes: int, level: int) -> None:
        """Start to load bytes into a cache level, from an address on that need not be valid."""

    @abstractmethod
    def barrier(self, emitter: Emitter) -> None:
        """Make the earlier writes of all lanes visible to all of them."""

    @abstractmethod
    def tile_statement(self, emitter: Emitter, statement: TileStatement) -> None:
        """Emit a statement about tiles; only some lanes support them."""
