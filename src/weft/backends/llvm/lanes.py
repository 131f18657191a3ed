"""Lanes: what the emitter leaves to those who know what a lane is.

Control flow, index arithmetic and scalar functions are the same code for all devices (emit.py). What a varying value
is, how a kernel begins, how lanes reach memory and each other is not: lanes are the elements of vectors on a CPU
(vector_lanes.py) and threads on a GPU (thread_lanes.py). Lanes have no state; they write through the emitter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from weft.backends.llvm import assembly as ir
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Fetch, FetchRun, Kernel, Put, PutRun, TileStatement

if TYPE_CHECKING:
    from weft.backends.llvm.emit import Emitter

Value = Any


class Lanes(ABC):
    """How the lanes of a block are written as LLVM IR."""

    @property
    @abstractmethod
    def index(self) -> ir.IntType:
        """The type of index arithmetic."""

    @abstractmethod
    def declare(self, kernel: Kernel, module: ir.Module) -> ir.Function:
        """The kernel's function, yet without code."""

    @abstractmethod
    def builder(self, block: ir.Block) -> ir.IRBuilder:
        """What appends instructions."""

    @abstractmethod
    def run(self, emitter: Emitter) -> None:
        """Everything inside of the function: where buffers and parameters are, the body for each block, the end."""

    # -- values ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def number(self, emitter: Emitter) -> Value:
        """The number of the lane, as an index."""

    @abstractmethod
    def spread(self, emitter: Emitter, value: Value) -> Value:
        """A value, uniform or not, as a varying one."""

    @abstractmethod
    def wide(self, emitter: Emitter, value: Dim) -> Value:
        """Index arithmetic as an int64 of the data."""

    @abstractmethod
    def position(self, emitter: Emitter, indirect: Code) -> Value:
        """An int64 of the data as an index."""

    @abstractmethod
    def comparison(self, emitter: Emitter, call: Call) -> Value | None:
        """A comparison of index arithmetic, where there is a better way than to compare two int64."""

    @abstractmethod
    def dot4(self, emitter: Emitter, unsigned: Value, signed: Value, total: Value) -> Value:
        """total + the sum of four uint8 times four int8, each four in an int32."""

    @abstractmethod
    def dot2(self, emitter: Emitter, left: Value, right: Value, total: Value) -> Value:
        """total + the sum of two bfloat16 times two others, each two in an int32."""

    @abstractmethod
    def half_bits(self, emitter: Emitter, value: Value) -> Value:
        """A float rounded to bfloat16, as 16 bits."""

    @abstractmethod
    def number_of_code(self, emitter: Emitter, code: Value, bits: int) -> Value:
        """The lowest bits of an int32, less half of their range, as a float."""

    # -- memory ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def view(self, emitter: Emitter, address: Value) -> Value:
        """The address where a view of a buffer starts, to be kept."""

    @abstractmethod
    def fetch(self, emitter: Emitter, fetch: Fetch) -> Value:
        """An element of a buffer."""

    @abstractmethod
    def fetch_run(self, emitter: Emitter, fetch: FetchRun) -> list[Value]:
        """Neighbouring elements of a buffer, varying."""

    @abstractmethod
    def put(self, emitter: Emitter, put: Put) -> None: ...

    @abstractmethod
    def put_run(self, emitter: Emitter, put: PutRun) -> None: ...

    # -- between lanes -----------------------------------------------------------------------------------------------

    @abstractmethod
    def across(self, emitter: Emitter, kind: str, value: Value, dtype: DType) -> Value:
        """All lanes' values combined, in an order that is always the same."""

    @abstractmethod
    def transpose(self, emitter: Emitter, rows: list[Value]) -> list[Value]:
        """Lane i's row number j and lane j's row number i change places."""

    @abstractmethod
    def barrier(self, emitter: Emitter) -> None:
        """What lanes wrote before is there for all of them afterwards."""

    @abstractmethod
    def tile_statement(self, emitter: Emitter, statement: TileStatement) -> None:
        """What is about tiles, which only some lanes multiply."""
