"""Run kernels of thread lanes without a GPU: their LLVM IR, compiled for this CPU, with a thread per lane.

NVIDIA's intrinsics call back into Python: thread and block numbers, barriers, and shuffles. Lanes that never
synchronize run one after another.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from backends.cpu.native import GUARD, compiled, guarded
from backends.llvm.emulated_tiles import TileMachine
from backends.llvm.turns import Meeting, Turns

from weft.backends.host.codegen import link_code
from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.ir.kernel import Kernel
from weft.ir.kernel_verify import verify_kernel
from weft.kernels.lower.barriers import insert_barriers

Array = np.ndarray[Any, Any]
INT, WORD = ctypes.c_int32, ctypes.c_uint32


class Block:
    """The state that the lanes of a block share."""

    def __init__(self) -> None:
        self.own = threading.local()
        self.lanes = 1
        self.number = 0
        self.words: list[int] = []
        self.exchanged: list[int] = []

    def start(self, number: int, lanes: int) -> None:
        self.number, self.lanes = number, lanes
        self.words = [0] * lanes
        self.turns = Turns(lanes)
        self.meeting = Meeting(self.turns, lanes)
        TILES.start(self.turns, lanes)

    def thread(self) -> int:
        number: int = self.own.number
        return number

    def barrier(self, _: int) -> None:
        self.meeting.wait()

    def exchange(self, mask: int, word: int, distance: int, _: int) -> int:
        me = self.thread()
        assert mask == (1 << min(self.lanes, 32)) - 1
        self.words[me] = word
        if self.meeting.wait():
            self.exchanged = list(self.words)
        return self.exchanged[me ^ distance]

    def broadcast(self, _: int, word: int, source: int, __: int) -> int:
        warp, lane = divmod(self.thread(), 32)
        return int(TILES.warps[warp].together(lane, word, lambda words: words[source]))


def dot4(unsigned: int, signed: int, total: int) -> int:
    left = np.array([unsigned], np.uint32).view(np.uint8).astype(np.int64)
    right = np.array([signed], np.uint32).view(np.int8).astype(np.int64)
    return int(np.array([int(left @ right) + total]).astype(np.int32)[0])


BLOCK = Block()
TILES = TileMachine()
INTRINSICS: dict[str, tuple[str, Any, Callable[..., Any]]] = {
    "read.ptx.sreg.tid.x": ("i32 ()", ctypes.CFUNCTYPE(INT), BLOCK.thread),
    "read.ptx.sreg.ctaid.x": ("i32 ()", ctypes.CFUNCTYPE(INT), lambda: BLOCK.number),
    "barrier.cta.sync.aligned.all": ("void (i32 %0)", ctypes.CFUNCTYPE(None, INT), BLOCK.barrier),
    "shfl.sync.bfly.i32": (
        "i32 (i32 %0, i32 %1, i32 %2, i32 %3)",
        ctypes.CFUNCTYPE(WORD, WORD, WORD, WORD, WORD),
        BLOCK.exchange,
    ),
    "shfl.sync.idx.i32": (
        "i32 (i32 %0, i32 %1, i32 %2, i32 %3)",
        ctypes.CFUNCTYPE(INT, INT, INT, INT, INT),
        BLOCK.broadcast,
    ),
    "idp4a.u.s": ("i32 (i32 %0, i32 %1, i32 %2)", ctypes.CFUNCTYPE(INT, WORD, WORD, INT), dot4),
}
CALLBACKS = {name: kind(function) for name, (_, kind, function) in INTRINSICS.items()}


def host_text(text: str) -> str:
    """Rewrite LLVM IR of thread lanes for the host, without GPU threads and address spaces."""
    text = re.sub(r" addrspace\(\d\)", "", text).replace("ptx_kernel ", "")
    if " asm " in text:
        text = TILES.host_text(text)
    text = re.sub(r'"nvvm\.reqntid"="\d+" ', "", text)
    for name, (signature, _, _) in INTRINSICS.items():
        result, arguments = signature.split(" ", 1)
        address = ctypes.cast(CALLBACKS[name], ctypes.c_void_p).value
        call = f"call {result} inttoptr (i64 {address} to ptr){arguments}"
        body = f"{call}\nret void" if result == "void" else f"%r = {call}\nret {result} %r"
        declared = re.compile(rf'declare .*@"llvm\.nvvm\.{re.escape(name)}".*\n')
        text = declared.sub(f'define internal {result} @"llvm.nvvm.{name}"{arguments} {{\n{body}\n}}\n', text)
    return text.replace("llvm.nvvm.", "weft.nvvm.")


def run_kernel(
    kernel: Kernel,
    arrays: Sequence[Array],
    blocks: int,
    parameters: Mapping[str, int] | None = None,
    lanes: ThreadLanes | None = None,
) -> list[Array]:
    """Run a kernel and return its arrays; bytes around each must not change."""
    kernel = insert_barriers(kernel)
    verify_kernel(kernel)
    text = llvm_text([kernel], lanes or ThreadLanes())
    code = link_code([compiled(host_text(text))], [kernel.name])
    memories = [guarded(array) for array in arrays]
    words = [memory.ctypes.data + GUARD for memory in memories]
    words += [(parameters or {})[name] for name in kernel.parameters]
    run = ctypes.CFUNCTYPE(None, *([ctypes.c_int64] * len(words)))(code.addresses[kernel.name])
    meet = "cta.sync" in text or "shfl" in text

    def run_lane(number: int) -> None:
        BLOCK.own.number = number
        TILES.enter(number)
        run(*words)

    for block in range(blocks):
        BLOCK.start(block, kernel.lanes)
        if meet:
            BLOCK.turns.run(run_lane)
            assert TILES.failed is None, repr(TILES.failed)
            assert not BLOCK.turns.broken, "a barrier was missed"
        else:
            for number in range(kernel.lanes):
                run_lane(number)
    for memory, array in zip(memories, arrays, strict=True):
        assert np.all(memory[:GUARD] == 0xA5)
        assert np.all(memory[GUARD + array.nbytes :] == 0xA5)
    return [
        memory[GUARD : GUARD + array.nbytes].view(array.dtype).reshape(array.shape)
        for memory, array in zip(memories, arrays)
    ]
