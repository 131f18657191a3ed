"""Emulate the inline PTX of tile products on this CPU, as the PTX manual specifies it.

Copies run as late as possible, when they are waited for. Products run at once.
"""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from typing import Any

import ml_dtypes
import numpy as np
from backends.llvm.turns import Meeting, Turns

Array = np.ndarray[Any, Any]
SHARED_BYTES = 1 << 18  # descriptors have as many addresses
FORMATS = {"i32": "i", "i64": "q", "float": "f"}
TYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "s8": np.int8,
    "u8": np.uint8,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
POISON = 0xA5
ASSEMBLY = re.compile(r'^(?:(%\S+) = )?call (.+?) asm (?:sideeffect )?"(.*?)", ".*?"\((.*)\)$', re.MULTILINE)


class Group:
    """Threads that execute an instruction together."""

    def __init__(self, turns: Turns, size: int) -> None:
        self.meeting = Meeting(turns, size)
        self.operands: list[Any] = [None] * size
        self.result: Any = None

    def together(self, number: int, operands: Any, compute: Any) -> Any:
        """Compute a result from the values of all threads."""
        self.operands[number] = operands
        if self.meeting.wait():
            self.result = compute(list(self.operands))
        return self.result


class TileMachine:
    """Shared memory, pending copies, and tensor cores."""

    def __init__(self) -> None:
        self.memory = np.zeros(2 * SHARED_BYTES, np.uint8)
        self.address = -(-self.memory.ctypes.data // SHARED_BYTES) * SHARED_BYTES
        start = self.address - self.memory.ctypes.data
        self.shared = self.memory[start : start + SHARED_BYTES]
        self.texts: list[tuple[str, str]] = []
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
        self.callback = kind(self.run)
        self.own = threading.local()
        self.failed: BaseException | None = None

    def start(self, turns: Turns, lanes: int) -> None:
        """Start a block."""
        self.turns = turns
        self.shared[:] = POISON
        self.failed = None
        self.warps = [Group(turns, 32) for _ in range(lanes // 32)]
        self.groups = [Group(turns, 128) for _ in range(lanes // 128)]

    def enter(self, number: int) -> None:
        self.own.number = number
        self.own.copies, self.own.open = [], []

    def host_text(self, text: str) -> str:
        """Replace inline assembly in LLVM IR by callbacks."""
        self.texts = []
        where = f"inttoptr (i64 {self.address} to ptr)"
        for name in re.findall(r'^(@"\w+_shared") = .*$', text, re.MULTILINE):
            text = re.sub(rf"^{name} = .*\n", "", text, flags=re.MULTILINE).replace(name, where)
        return ASSEMBLY.sub(self.call_text, text)

    def call_text(self, match: re.Match[str]) -> str:
        result, kind, assembly, operands = match.groups()
        number = len(self.texts)
        values = [value.strip().split(" ", 1) for value in operands.split(",")] if operands else []
        self.texts.append((assembly, "<" + "".join(FORMATS[type] for type, _ in values)))
        packed = f"<{{ {', '.join(type for type, _ in values)} }}>"
        lines = []
        last = "undef"
        for at, (type, value) in enumerate(values):
            lines.append(f"%asm{number}.{at} = insertvalue {packed} {last}, {type} {value}, {at}")
            last = f"%asm{number}.{at}"
        lines.append(f"%asm{number}.given = alloca {packed if values else 'i32'}")
        if values:
            lines.append(f"store {packed} {last}, ptr %asm{number}.given")
        lines.append(f"%asm{number}.found = alloca {'i32' if kind == 'void' else kind}")
        address = ctypes.cast(self.callback, ctypes.c_void_p).value
        to = f"inttoptr (i64 {address} to ptr)"
        lines.append(f"call void {to}(i32 {number}, ptr %asm{number}.given, ptr %asm{number}.found)")
        if result:
            lines.append(f"{result} = load {kind}, ptr %asm{number}.found")
        return "\n".join(lines)

    # -- instructions ------------------------------------------------------------------------------------------------

    def run(self, number: int, operands: int, result_words: int) -> None:
        try:
            text, form = self.texts[number]
            values = struct.unpack(form, ctypes.string_at(operands, struct.calcsize(form)))
            results = self.instruction(text, values)
            if results is not None:
                raw = np.asarray(results).tobytes()
                ctypes.memmove(result_words, raw, len(raw))
        except BaseException as error:
            self.failed = self.failed or error
            self.turns.give_up()

    def instruction(self, text: str, values: tuple[Any, ...]) -> Array | None:
        own = self.own
        if text.startswith("cp.async.cg"):
            own.open.append(values)
        elif text.startswith("cp.async.commit_group"):
            own.copies.append(own.open)
            own.open = []
        elif text.startswith("cp.async.wait_group"):
            left = int(re.findall(r"\d+", text)[0])
            while len(own.copies) > left:
                for to, source, size in own.copies.pop(0):
                    at = to % SHARED_BYTES
                    assert at % 16 == 0
                    assert source % 16 == 0 or size == 0
                    self.shared[at : at + 16] = 0
                    self.shared[at : at + size] = np.frombuffer(ctypes.string_at(source, size), np.uint8)
        elif text.startswith("ldmatrix"):
            return self.load_matrices(text, values[0] % SHARED_BYTES)
        elif text.startswith("mma.sync"):
            return self.multiply(text, values)
        elif "wgmma.mma_async" in text:
            return self.multiply_groups(text, values)
        elif text.startswith("cvt.rn.bf16.f32"):
            return np.array(values, np.float32).astype(ml_dtypes.bfloat16)
        elif text.startswith("lop3.b32") and "0xEA" in text:
            return np.array([values[0] & values[1] | values[2]], np.int32)
        elif text.startswith("fma.rn."):
            kind = TYPES[text.split(".")[2].split("x")[0]]
            a, b, c = (np.array([value], np.int32).view(kind).astype(np.float64) for value in values)
            exact = a * b + c
            rounded = exact.astype(kind)
            assert np.array_equal(rounded.astype(np.float64), exact), "the result is not exact"
            return rounded
        elif text.startswith("wgmma.wait_group") and values:
            return np.array(values, np.float32 if isinstance(values[0], float) else np.int32)
        else:
            assert text.startswith(("fence.proxy.async", "wgmma.wait_group")), text
        return None

    def load_matrices(self, text: str, address: int) -> Array:
        warp, lane = divmod(self.own.number, 32)
        count = int(re.findall(r"\.x(\d)", text)[0])

        def lines(addresses: list[int]) -> Array:
            assert all(at % 16 == 0 for at in addresses[: 8 * count])
            for first in range(0, 8 * count, 8):
                banks = {at % 128 for at in addresses[first : first + 8]}
                assert len(banks) == 8, "bank conflict"
            result_words = np.array([self.shared[at : at + 16] for at in addresses[: 8 * count]])
            return result_words.reshape(count, 8, 16)

        result_words = self.warps[warp].together(lane, address, lines)
        if ".trans" in text:
            transposed = np.ascontiguousarray(result_words).view(np.uint16).transpose(0, 2, 1)
            return np.ascontiguousarray(transposed[:, lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2])
        return np.ascontiguousarray(result_words[:, lane // 4, lane % 4 * 4 : lane % 4 * 4 + 4])

    def multiply(self, text: str, values: tuple[Any, ...]) -> Array:
        warp, lane = divmod(self.own.number, 32)
        kinds = re.findall(r"\.row\.col\.\w+\.(\w+)\.(\w+)\.", text)[0]
        whole = kinds[0] in ("s8", "u8")

        def product(operands: list[tuple[Any, ...]]) -> Array:
            left, right = np.zeros((16, 8), np.int32), np.zeros((8, 8), np.int32)
            sums = np.zeros((16, 8))
            for thread, own in enumerate(operands):
                group, place = divmod(thread, 4)
                for at in range(4):
                    sums[group + at // 2 * 8, place * 2 + at % 2] = own[at]
                    left[group + at % 2 * 8, place + at // 2 * 4] = own[4 + at]
                for at in range(2):
                    right[group, place + at * 4] = own[8 + at]
            return sums + numbers(left, kinds[0]) @ numbers(right, kinds[1]).T

        result = self.warps[warp].together(lane, values, product)
        group, place = divmod(lane, 4)
        result_words = [result[group + at // 2 * 8, place * 2 + at % 2] for at in range(4)]
        return np.array(result_words).astype(np.int32 if whole else np.float32)

    def multiply_groups(self, text: str, values: tuple[Any, ...]) -> Array:
        group, thread = divmod(self.own.number, 128)
        offsets = {name: (int(at), int(by)) for name, at, by in re.findall(r"add\.s64 (\w+), \$(\d+), (\d+);", text)}
        form = (
            r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.\w+\.(\w+)\.(\w+) \{(.*?)\}, "
            r"(\w+|\{.*?\}), (\w+), (\w+)(.*?);"
        )
        result_words: dict[int, Any] = {}
        steps = re.findall(form, text)
        results = 1 + max(int(place) for step in steps for place in re.findall(r"\d+", step[4]))
        for columns, depth, one, other, places, left, right, test, flags in steps:
            bits = [int(flag) for flag in re.findall(r"\d", flags)][2:] or [0, 0]
            registers = [int(place) for place in re.findall(r"\d+", places)]
            fresh = test == "first" and "setp.ne.b32 first" in text
            own = [0 if fresh else result_words[at] if at in result_words else values[at] for at in registers]
            words = [values[int(place) - results] for place in re.findall(r"\d+", left)] if left[0] == "{" else []
            parts = [
                values[offsets[name][0] - results] + offsets[name][1] for name in ((right,) if words else (left, right))
            ]

            def product(
                operands: list[Any],
                shape: tuple[int, int] = (int(columns), int(depth)),
                kinds: tuple[str, str] = (one, other),
                transposed: list[int] = bits,
            ) -> Array:
                assert len({descriptors for _, descriptors, _ in operands}) == 1
                descriptors = operands[0][1]
                tiles = list(zip((64, shape[0]), kinds, transposed if len(descriptors) == 2 else [0, *transposed]))
                rows = [
                    self.read_descriptor(descriptor % (1 << 64), count, shape[1], kind, bool(flag))
                    for descriptor, (count, kind, flag) in zip(descriptors, tiles[-len(descriptors) :])
                ]
                if len(descriptors) == 1:
                    rows.insert(0, rows_of_words([own_words for _, _, own_words in operands], kinds[0]))
                result = np.zeros((64, shape[0]))
                for number, (mine, _, _) in enumerate(operands):
                    for at, value in enumerate(mine):
                        result[sum_place(number, at)] = value
                return result + rows[0] @ rows[1].T

            result = self.groups[group].together(thread, (own, tuple(parts), words), product)
            result_words.update((register, result[sum_place(thread, at)]) for at, register in enumerate(registers))
        whole = ".s32." in text
        return np.array([result_words[register] for register in sorted(result_words)]).astype(
            np.int32 if whole else np.float32
        )

    def read_descriptor(self, descriptor: int, rows: int, depth: int, kind: str, transposed: bool) -> Array:
        """Read the matrix of a descriptor in a canonical layout."""
        start = (descriptor & 0x3FFF) << 4
        leading, stride = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
        width = {1: 128, 2: 64, 3: 32}[descriptor >> 62]
        size = np.dtype(TYPES[kind]).itemsize
        row, at = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
        if transposed:
            byte = row * size
            place = byte // width * leading + byte % width + at // 8 * stride + at % 8 * width
        else:
            place = row // 8 * stride + row % 8 * width + at * size
        place = start + place
        place ^= (place >> 7 & (width // 16 - 1)) << 4
        raw = self.shared[place[..., None] + np.arange(size)]
        return numbers(np.ascontiguousarray(raw), kind).reshape(rows, depth)


def sum_place(thread: int, number: int) -> tuple[int, int]:
    """Return the row and column of an accumulator register, in a product of 64 rows."""
    row = thread // 32 * 16 + thread % 32 // 4 + number // 2 % 2 * 8
    return row, number // 4 * 8 + thread % 4 * 2 + number % 2


def rows_of_words(words: list[list[int]], kind: str) -> Array:
    """Return the left operand of a product of 64 rows from the words of 128 threads."""
    rows = np.zeros((64, 8), np.int32)
    for thread, own in enumerate(words):
        for at, word in enumerate(own):
            row = thread // 32 * 16 + thread % 32 // 4 + at % 2 * 8
            rows[row, thread % 4 + at // 2 * 4] = word
    return numbers(rows, kind)


def numbers(raw: Array, kind: str) -> Array:
    """Convert bits to float64, along the last axis."""
    if kind == "tf32":
        raw = raw.view(np.int32) & ~0x1FFF
    return np.ascontiguousarray(raw).view(TYPES[kind]).astype(np.float64)
