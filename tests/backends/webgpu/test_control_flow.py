"""Tensors in control flow stay on the device, and results agree with onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from frontend.samples import model, node, tensor, value
from onnx import TensorProto, helper

import weft
from weft.backends.webgpu.gpu import Gpu
from weft.backends.webgpu.readback import Readback

GPU = "webgpu:llvmpipe"
SIZE = 64  # of a state of 64 x 64, 16 KiB: what is less than that is conditions, counters and flags
SEED = 16
Array = np.ndarray[Any, Any]


def body(
    name: str, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, inputs, outputs)


def weights() -> list[onnx.TensorProto]:
    drawn = np.random.default_rng(SEED).standard_normal((SIZE, SIZE)).astype(np.float32) / SIZE
    return [tensor("w", drawn)]


def step(suffix: str) -> list[onnx.NodeProto]:
    """new = tanh(state @ w) + state."""
    return [
        node("MatMul", ["state", "w"], [f"p{suffix}"]),
        node("Tanh", [f"p{suffix}"], [f"t{suffix}"]),
        node("Add", [f"t{suffix}", "state"], [f"new{suffix}"]),
    ]


def branching() -> onnx.ModelProto:
    """Build a branch: one step, or the state times 2, as in decoders with and without a cache in one file."""
    double = [node("Add", ["state", "state"], ["new_other"])]
    shape = [SIZE, SIZE]
    branch = node(
        "If",
        ["flag"],
        ["branched"],
        then_branch=body("then", step(""), [], [value("new", shape)]),
        else_branch=body("else", double, [], [value("new_other", shape)]),
    )
    after = node("Mul", ["branched", "half"], ["next"])
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    constants = [*weights(), tensor("half", np.array(0.5, np.float32))]
    return model([branch, after], [flag, value("state", shape)], [value("next", shape)], constants)


def looping(nested: bool = False) -> onnx.ModelProto:
    """Build a loop of `trips` steps with a captured weight and their means. Nested: every iteration is a branch."""
    shape = [SIZE, SIZE]
    inner = [*step(""), node("ReduceMean", ["new"], ["mean"], keepdims=0), node("Identity", ["going"], ["still"])]
    if nested:
        odd = [node("Mod", ["number", "two"], ["rest"]), node("Cast", ["rest"], ["odd"], to=TensorProto.BOOL)]
        then = body("then", step("_then"), [], [value("new_then", shape)])
        otherwise = body("else", [node("Neg", ["state"], ["new_else"])], [], [value("new_else", shape)])
        chosen = node("If", ["odd"], ["new"], then_branch=then, else_branch=otherwise)
        inner = [*odd, chosen, *inner[3:]]
    number = helper.make_tensor_value_info("number", TensorProto.INT64, [])
    going = helper.make_tensor_value_info("going", TensorProto.BOOL, [])
    still = helper.make_tensor_value_info("still", TensorProto.BOOL, [])
    graph = body("body", inner, [number, going, value("state", shape)], [still, value("new", shape), value("mean", [])])
    loop = node("Loop", ["trips", "", "first"], ["next", "means"], body=graph)
    trips = helper.make_tensor_value_info("trips", TensorProto.INT64, [])
    constants = [*weights(), tensor("two", np.array(2, np.int64))]
    return model([loop], [trips, value("first", shape)], [value("next", shape), value("means", ["turns"])], constants)


def expected(proto: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    outputs: list[Array] = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, inputs)
    return outputs


@pytest.fixture
def travelled(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Record the sizes of all copies to and from the device."""
    sizes: dict[str, list[int]] = {"to": [], "from": []}
    write, start_read = Gpu.write, Readback.start

    def counted_write(self: Gpu, buffer: Any, offset: int, data: Any) -> None:
        sizes["to"].append(memoryview(data).nbytes)
        write(self, buffer, offset, data)

    def counted_read(self: Readback, batch: Any, *arguments: Any, **options: Any) -> Callable[[], None]:
        sizes["from"] += [chunk.size for chunk in batch]
        return start_read(self, batch, *arguments, **options)

    monkeypatch.setattr(Gpu, "write", counted_write)
    monkeypatch.setattr(Readback, "start", counted_read)
    return sizes


@pytest.mark.parametrize("flags", [(True, True), (False, True), (True, False, False)])
def test_state_stays_on_the_device_in_branches(flags: tuple[bool, ...], travelled: dict[str, list[int]]) -> None:
    loaded = weft.load(branching(), device=GPU, strict=True)
    start = np.random.default_rng(SEED).standard_normal((SIZE, SIZE)).astype(np.float32)
    reference, state = start, loaded.to_device(start)
    for flag in flags:
        loaded.run({"flag": np.array(flag), "state": state}, keep=["next"])  # weights go there once
        travelled["to"].clear()
        travelled["from"].clear()
        state = loaded.run({"flag": np.array(flag), "state": state}, keep=["next"])["next"]
        (reference,) = expected(branching(), {"flag": np.array(flag), "state": reference})
        assert max([*travelled["to"], *travelled["from"], 0]) < start.nbytes
    np.testing.assert_allclose(state.numpy(), reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nested", [False, True], ids=["a step", "a branch"])
@pytest.mark.parametrize("trips", [0, 1, 7])
def test_carried_values_stay_on_the_device_in_loops(nested: bool, trips: int, travelled: dict[str, list[int]]) -> None:
    loaded = weft.load(looping(nested), device=GPU, strict=True)
    first = np.random.default_rng(SEED).standard_normal((SIZE, SIZE)).astype(np.float32)
    inputs = {"trips": np.array(trips), "first": first}
    loaded.run(inputs)
    travelled["to"].clear()
    travelled["from"].clear()
    outputs = loaded.run(inputs)
    large = {direction: [size for size in sizes if size >= first.nbytes] for direction, sizes in travelled.items()}
    assert len(large["to"]) <= 1  # the first state
    assert len(large["from"]) <= 1  # the last one
    for result, reference in zip(outputs.values(), expected(looping(nested), inputs), strict=True):
        assert result.shape == reference.shape
        np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-5)
