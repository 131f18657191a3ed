"""Files of saved programs that are damaged, forged or cut: an error of weft's each, and none of their code runs.

Damage is whatever changes bytes without making checksums right again: every load of such a file is refused, trusted or
not. Forged files have right checksums: only this user can have signed them, so they are refused, or their graph
is compiled anew where that was asked for, with the results of that.
"""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from attack.verdict import Payload, Verdict, refused, right, wrong
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.errors import WeftError
from weft.saved.layout import HEADER_SIZE, MAGIC, SIGNED_SIZE, make_header, make_signed_part

SHARE = 200
NUMBERS = (0, 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
ODD: tuple[Any, ...] = (None, True, -1, 2**62, 2**200, 1.5, float("nan"), "", "x", "é" * 50, [], {}, [[]], {"a": 1})
DAMAGES = ("flip", "flip", "flip", "cut", "cut", "grow", "zero", "swap", "move", "magic", "head", "manifest", "splice",
           "repeat", "empty")  # fmt: skip
FORGERIES = ("manifest", "number", "graph", "program", "signature", "deep", "long", "own other")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"trusted": True}, {"recompile": True}, {"trusted": True, "recompile": True})
WAYS = ("path", "bytes", "stream")


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    """Damage and forgery in turn, each with a seed of its own."""
    del device
    for turn in count():
        kind = "forged" if turn % 4 == 3 else "damaged"
        what = str(random.choice(FORGERIES if kind == "forged" else DAMAGES))
        yield {
            "name": f"{kind} {what}",
            "kind": kind,
            "what": what,
            "seed": int(random.integers(2**32)),
            "options": OPTIONS[int(random.integers(len(OPTIONS)))],
            "way": str(random.choice(WAYS)),
        }


def attack(payload: Payload, device: str) -> Verdict:
    """Load and run one such file."""
    del device
    random = np.random.default_rng(payload["seed"])
    if payload["kind"] == "damaged":
        content, options = _damaged(payload["what"], random), payload["options"]
        if content in (_saved(), _saved(1)):  # which damage can give back
            return right()
        try:
            _run(content, payload["way"], options)
        except WeftError as error:
            return _refusal(error)
        return wrong("it was loaded")
    options = {} if payload["options"].get("trusted") else payload["options"]
    try:
        output = _run(_forged(payload["what"], random), payload["way"], options)
    except WeftError as error:
        return _refusal(error)
    return right() if options.get("recompile") and np.allclose(output, _expected(), rtol=1e-5) else wrong("it was run")


def _refusal(error: WeftError) -> Verdict:
    if isinstance(error, weft.InternalError):
        raise error
    return refused(f"{type(error).__name__}: {error}")


def _run(content: bytes, way: str, options: dict[str, Any]) -> np.ndarray:
    if way == "bytes":
        return weft.load(content, **options).run({"x": _input()})["y"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.weft"
        path.write_bytes(content)
        if way == "path":
            return weft.load(path, **options).run({"x": _input()})["y"]
        with path.open("rb") as file:
            return weft.load(file, **options).run({"x": _input()})["y"]


# -- files -----------------------------------------------------------------------------------------------------------


def _input() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(2, 8)).astype(np.float32)


def _model(seed: int) -> bytes:
    weights = numpy_helper.from_array(np.random.default_rng(seed).normal(size=(8, 40)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


@cache
def _saved(seed: int = 0) -> bytes:
    """A file that this user made."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.weft"
        weft.compile(_model(seed), path, target=("native", "aarch64"))
        content = path.read_bytes()
    assert np.array_equal(weft.load(content).run({"x": _input()})["y"], _expected(seed))
    return content


@cache
def _expected(seed: int = 0) -> np.ndarray:
    return weft.load(_model(seed), device="cpu").run({"x": _input()})["y"]


def _damaged(what: str, random: np.random.Generator) -> bytes:
    whole = bytearray(_saved())
    size = len(whole)
    start, end = sorted(int(place) for place in random.integers(0, size + 1, 2))
    match what:
        case "flip":
            for place in random.integers(0, size, int(random.integers(1, 6))):
                whole[place] ^= 1 << int(random.integers(8))
        case "cut":
            del whole[start:]
        case "grow":
            whole += random.bytes(int(random.integers(1, 5000)))
        case "zero":
            whole[start:end] = bytes(end - start)
        case "swap":
            length = int(random.integers(1, 3000))
            start, end = min(start, size - 2 * length), min(max(end, start + length), size - length)
            whole[start : start + length], whole[end : end + length] = (
                whole[end : end + length],
                whole[start : start + length],
            )
        case "move":
            whole = whole[end:] + whole[start:end] + whole[:start]
        case "magic":
            whole[: len(MAGIC)] = random.bytes(len(MAGIC))
        case "head":
            place = int(random.integers(len(MAGIC), HEADER_SIZE - 8))
            whole[place : place + 8] = struct.pack("<Q", NUMBERS[int(random.integers(len(NUMBERS)))])
        case "manifest":
            place, length = _manifest_place(bytes(whole))
            at = place + int(random.integers(length))
            whole[at : at + 1] = random.bytes(1)
        case "splice":
            whole = whole[:start] + bytearray(_saved(1))[start:]
        case "repeat":
            whole[start:end] = whole[start:end] * 2
        case "empty":
            whole = whole[: int(random.integers(0, HEADER_SIZE + 8))]
    return bytes(whole)


def _manifest_place(content: bytes) -> tuple[int, int]:
    place, length = struct.unpack_from("<QQ", content, len(MAGIC) + 8)
    return place, length


def _forged(what: str, random: np.random.Generator) -> bytes:
    """Return a file sealed with another user's key."""
    content = _saved()
    place, length = _manifest_place(content)
    blocks, graph = bytearray(content[HEADER_SIZE:place]), bytearray(content[place + length :])
    manifest = json.loads(content[place : place + length])
    match what:
        case "manifest":
            parent, key = _somewhere(manifest, random)
            parent[key] = ODD[int(random.integers(len(ODD)))]
        case "number":
            number = NUMBERS[int(random.integers(len(NUMBERS)))]
            manifest["blocks"][int(random.integers(len(manifest["blocks"])))][int(random.integers(2))] = number
        case "graph":
            graph[int(random.integers(len(graph)))] ^= 1 << int(random.integers(8))
            if random.random() < 0.5:
                manifest["model"] = hashlib.sha256(graph).hexdigest()
        case "program":
            blocks[int(random.integers(len(blocks)))] ^= 255
        case "signature":
            sealed = _sealed(manifest, blocks, graph)
            return sealed[:SIGNED_SIZE] + content[SIGNED_SIZE : SIGNED_SIZE + 32] + sealed[SIGNED_SIZE + 32 :]
        case "deep":
            manifest["programs"] = json.loads("[" * 900 + "]" * 900)
        case "long":
            manifest["file"] = "x" * 200_000
    return _sealed(manifest, blocks, graph)


def _sealed(manifest: Any, blocks: bytes | bytearray, graph: bytes | bytearray) -> bytes:
    text = json.dumps(manifest, allow_nan=True).encode()
    signed = make_signed_part(text, HEADER_SIZE + len(blocks), len(graph))
    return make_header(signed, bytes(32)) + bytes(blocks) + text + bytes(graph)


def _somewhere(value: Any, random: np.random.Generator) -> tuple[Any, Any]:
    """A container in a value, and a key in it."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = keys[int(random.integers(len(keys)))]
        inner = value[key]
        if not isinstance(inner, (dict, list)) or not inner or random.random() < 0.3:
            return value, key
        value = inner
