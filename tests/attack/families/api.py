"""Wrong arguments to every public entry point are accepted if unambiguous, or refused with a WeftError.

A case names an entry point, an argument of it, and one of the oddities below; what is not odd for that argument runs.
"""

from __future__ import annotations

import array as arrays
import io
import os
import tempfile
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from attack.verdict import Payload, Verdict, right, wrong
from onnx import TensorProto, helper, numpy_helper

import weft
import weft.backend

SECONDS = 60.0
SHARE = 1000  # all of them


# -- odd things ------------------------------------------------------------------------------------------------------


class Raises:
    """Raises its own exception on any attribute access or call."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array today")

    def __fspath__(self) -> str:
        raise RuntimeError("no path today")

    def read(self) -> bytes:
        raise RuntimeError("no bytes today")


class Lies:
    def __array__(self, *_: Any, **__: Any) -> Any:
        return "not an array"

    def __fspath__(self) -> Any:
        return 5

    def read(self) -> Any:
        return 5


class Exports:
    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("no capsule today")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _overlapping() -> Any:
    return np.lib.stride_tricks.as_strided(np.arange(4, dtype=np.float32), (2, 3), (4, 4))


def _unaligned() -> Any:
    return np.frombuffer(b"\0" + np.arange(6, dtype=np.float32).tobytes(), np.float32, offset=1).reshape(2, 3)


def _released_view() -> memoryview:
    view = memoryview(b"123")
    view.release()
    return view


def _released_tensor() -> Any:
    tensor = weft.to_device(_plain(), "reference")
    tensor.release()
    return tensor


def _closed() -> io.BytesIO:
    stream = io.BytesIO(b"abc")
    stream.close()
    return stream


def _plain() -> Any:
    return np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5


ODD: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true": lambda: True,
    "number": lambda: 5,
    "negative number": lambda: -1,
    "zero": lambda: 0,
    "fraction": lambda: 2.5,
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "huge number": lambda: 10**30,
    "complex number": lambda: 1 + 2j,
    "text": lambda: "x",
    "empty text": lambda: "",
    "nul": lambda: "a\0b",
    "surrogate": lambda: "\udc80",
    "bytes": lambda: b"x",
    "bytearray": lambda: bytearray(b"xyz"),
    "released view": _released_view,
    "memoryview of floats": lambda: memoryview(np.ones(3, np.float32)),
    "list": lambda: [1, 2, 3],
    "ragged list": lambda: [[1], [1, 2]],
    "list of none": lambda: [None],
    "list of lists": lambda: [["x"]],
    "list of arrays": lambda: [_plain()],
    "empty list": list,
    "tuple": lambda: ("y", 5),
    "set": lambda: {1, 2},
    "generator": lambda: (name for name in ["y"]),
    "range": lambda: range(3),
    "empty dict": dict,
    "dict of number": lambda: {1: _plain()},
    "dict of none": lambda: {None: _plain()},
    "dict of x none": lambda: {"x": None},
    "dict of x text": lambda: {"x": "abc"},
    "dict of x fraction": lambda: {"x": 2.5},
    "dict of n fraction": lambda: {"n": 2.5},
    "dict of n true": lambda: {"n": True},
    "dict of n negative": lambda: {"n": -1},
    "dict of n numpy": lambda: {"n": np.int64(2)},
    "dict of x list": lambda: {"x": [2, None]},
    "dict of x shape": lambda: {"x": (2, 3)},
    "dict of x negative": lambda: {"x": (-2, 3)},
    "dict of x array": lambda: {"x": _plain()},
    "dict of x and z": lambda: {"x": _plain(), "z": _plain()},
    "user's dict": lambda: UserDict(x=_plain()),
    "object": object,
    "class": lambda: Raises,
    "function": lambda: len,
    "raises": Raises,
    "lies": Lies,
    "exports": Exports,
    "array": _plain,
    "scalar array": lambda: np.float32(1),
    "array without dims": lambda: np.array(1, np.float32),
    "flat array": lambda: np.ones(3, np.float32),
    "deep array": lambda: np.ones((2, 3, 1), np.float32),
    "empty array": lambda: np.ones((0, 3), np.float32),
    "wide array": lambda: np.ones((2, 4), np.float32),
    "array of objects": lambda: np.array([[1.0, None, "x"]], object),
    "array of numbers as objects": lambda: _plain().astype(object),
    "array of complex": lambda: np.ones((2, 3), np.complex64),
    "array of records": lambda: np.zeros((2, 3), [("a", "f4"), ("b", "i4")]),
    "array of times": lambda: np.zeros((2, 3), "datetime64[s]"),
    "array of long doubles": lambda: np.ones((2, 3), np.longdouble),
    "array of text": lambda: np.array([["a", "b", "c"]]),
    "array of bytes": lambda: np.array([[b"a", b"b", b"\xff"]]),
    "array of float64": lambda: np.ones((2, 3)),
    "array of bool": lambda: np.ones((2, 3), bool),
    "array of another byte order": lambda: _plain().astype(">f4"),
    "array in Fortran's order": lambda: np.asfortranarray(_plain()),
    "overlapping array": _overlapping,
    "broadcast array": lambda: np.broadcast_to(np.float32(3), (2, 3)),
    "backward array": lambda: _plain()[::-1, ::-1],
    "unaligned array": _unaligned,
    "read-only array": lambda: np.frombuffer(_plain().tobytes(), np.float32).reshape(2, 3),
    "masked array": lambda: np.ma.masked_less(_plain(), 0),
    "array with an unused mask": lambda: np.ma.masked_less(_plain(), -99),
    "matrix": lambda: np.matrix(_plain()),
    "array module's array": lambda: arrays.array("f", [1, 2, 3]),
    "tensor of the reference": lambda: weft.to_device(_plain(), "reference"),
    "released tensor": _released_tensor,
    "closed file": _closed,
    "text file": lambda: io.StringIO("abc"),
    "empty file": lambda: io.BytesIO(b""),
    "model": lambda: MODELS["plain"](),
    "empty model": onnx.ModelProto,
    "folder": tempfile.gettempdir,
    "missing path": lambda: Path("missing", "model.onnx"),
    "path below a file": lambda: Path(__file__, "below"),
    "path in proc": lambda: "/proc/self/weft",
    "long path": lambda: "a" * 5000,
    "amount of memory": lambda: "1" * 400,
    "fraction of a byte": lambda: "0.1B",
    "huge threads": lambda: 1 << 20,
}  # fmt: skip


# -- entry points ----------------------------------------------------------------------------------------------------


def _graph(nodes: list[Any], inputs: list[Any], outputs: list[str], constants: Mapping[str, Any] = {}) -> Any:
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=name) for name in outputs], initializers)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _tensor(name: str, dtype: int, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def _typed(name: str, kind: Any) -> Any:
    return helper.make_value_info(name, kind)


def _plain_model() -> Any:
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("MatMul", ["x", "w"], ["z"])]
    weights = {"w": np.ones((3, 2), np.float32)}
    return _graph(nodes, [_tensor("x", TensorProto.FLOAT, ["n", 3])], ["y", "z"], weights)


def _one(op: str, kind: Any, outputs: list[str], **attributes: Any) -> Any:
    return _graph([helper.make_node(op, ["x"], outputs, **attributes)], [_typed("x", kind)], outputs)


_FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
MODELS: dict[str, Callable[[], Any]] = {
    "plain": _plain_model,
    "strings": lambda: _one("StringNormalizer", helper.make_tensor_type_proto(TensorProto.STRING, ["n"]), ["y"]),
    "integers": lambda: _one("Neg", helper.make_tensor_type_proto(TensorProto.INT64, ["n", "m"]), ["y"]),
    "sequence": lambda: _one("SequenceLength", helper.make_sequence_type_proto(_FLOATS), ["y"]),
    "optional": lambda: _one("OptionalHasElement", helper.make_optional_type_proto(_FLOATS), ["y"]),
    "map": lambda: _one(
        "DictVectorizer",
        helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [])),
        ["y"],
        domain="ai.onnx.ml",
        string_vocabulary=["a", "b"],
    ),
}

_GOOD = {"x": _plain()}


def _loaded(device: str, which: str = "plain") -> Any:
    if (device, which) not in _LOADED:
        _LOADED[device, which] = weft.load(MODELS[which](), device=device, cache=False)
    return _LOADED[device, which]


_LOADED: dict[tuple[str, str], Any] = {}


def _dump(odd: Any, device: str) -> None:
    """Relative paths lead into a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            weft.load(MODELS["plain"](), device=device, dump=odd)
        finally:
            os.chdir(before)


ENTRIES: dict[str, Callable[[Any, str], Any]] = {
    "load source": lambda odd, device: weft.load(odd, device=device, cache=False),
    "load device": lambda odd, _: weft.load(MODELS["plain"](), device=odd, cache=False),
    "load threads": lambda odd, device: weft.load(MODELS["plain"](), device=device, threads=odd, cache=False).run(
        _GOOD
    ),
    "load precision": lambda odd, device: weft.load(MODELS["plain"](), device=device, precision=odd, cache=False),
    "load memory_limit": lambda odd, device: weft.load(MODELS["plain"](), device=device, memory_limit=odd, cache=False),
    "load prefer": lambda odd, device: weft.load(MODELS["plain"](), device=device, prefer=odd, cache=False),
    "load dump": _dump,
    "run inputs": lambda odd, device: _loaded(device).run(odd),
    "run x": lambda odd, device: _loaded(device).run({"x": odd}),
    "run outputs": lambda odd, device: _loaded(device).run(_GOOD, odd),
    "run keep": lambda odd, device: _loaded(device).run(_GOOD, keep=odd),
    "run strings": lambda odd, device: _loaded(device, "strings").run({"x": odd}),
    "run integers": lambda odd, device: _loaded(device, "integers").run({"x": odd}),
    "run sequence": lambda odd, device: _loaded(device, "sequence").run({"x": odd}),
    "run sequence of": lambda odd, device: _loaded(device, "sequence").run({"x": [odd]}),
    "run optional": lambda odd, device: _loaded(device, "optional").run({"x": odd}),
    "run map": lambda odd, device: _loaded(device, "map").run({"x": odd}),
    "run map of": lambda odd, device: _loaded(device, "map").run({"x": {"a": odd}}),
    "call": lambda odd, device: _loaded(device)(odd),
    "call x": lambda odd, device: _loaded(device)(x=odd),
    "call twice": lambda odd, device: _loaded(device)(odd, odd),
    "memory": lambda odd, device: _loaded(device).memory(odd),
    "memory n": lambda odd, device: _loaded(device).memory({"n": odd}),
    "plan": lambda odd, device: _loaded(device).plan(odd),
    "plan x": lambda odd, device: _loaded(device).plan({"x": odd}),
    "profile": lambda odd, device: _loaded(device).profile(odd, 1),
    "profile repeat": lambda odd, device: _loaded(device).profile(_GOOD, odd),
    "model to_device": lambda odd, device: _loaded(device).to_device(odd),
    "to_device": lambda odd, device: weft.to_device(odd, device),
    "to_device device": lambda odd, _: weft.to_device(_plain(), odd),
    "backend prepare": lambda odd, _: weft.backend.prepare(odd, "CPU"),
    "backend device": lambda odd, _: weft.backend.prepare(MODELS["plain"](), odd),
    "backend supports": lambda odd, _: weft.backend.supports_device(odd),
    "backend run": lambda odd, _: weft.backend.prepare(MODELS["plain"](), "CPU").run(odd),
}
NOT_TRIED = {  # would be what was asked for: hours, or a million threads
    ("profile repeat", "huge number"),
    ("profile repeat", "huge threads"),
    ("load threads", "huge number"),
    ("load threads", "huge threads"),
}


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    for entry in ENTRIES:
        for odd in ODD:
            if (entry, odd) not in NOT_TRIED:
                yield {"name": f"{entry}: {odd}", "entry": entry, "odd": odd}


def attack(payload: Payload, device: str) -> Verdict:
    odd = ODD[payload["odd"]]()
    results = ENTRIES[payload["entry"]](odd, device)
    if payload["entry"] in ("run x", "call x", "call") and isinstance(odd, (np.ndarray, weft.DeviceTensor)):
        y = results["y"] if isinstance(results, dict) else results[0]
        expected = -np.asarray(odd)
        if y.shape != expected.shape or not np.array_equal(y, expected):
            return wrong(f"{y} for {odd!r}")
    return right()
