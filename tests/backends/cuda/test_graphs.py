"""Plans as graphs: their nodes, what each waits for, and the addresses that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from backends.cuda.recording_driver import Node, RecordingDriver
from frontend.samples import model, node, tensor, value
from onnx import helper

import weft
from weft.backends.cuda import launches
from weft.backends.cuda.compile import KernelCode
from weft.backends.cuda.gpu import CudaGpu, open_gpu
from weft.backends.cuda.launches import CudaLaunches, GraphRecording, direct_waits
from weft.backends.resident.device import BufferSlice
from weft.ir import kernel as ir
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Kernel, Number, Put
from weft.ir.work import Place, PlannedLaunch, Repeated, unrolled

Plan = Sequence[PlannedLaunch | Repeated]
ONE = Kernel(
    "one",
    (Buffer("given", DType.float32, False), Buffer("out", DType.float32, True)),
    ("count",),
    32,
    (Put("out", ir.lane(32), Number(1.0, DType.float32)),),
)


def branching() -> onnx.ModelProto:
    """Three branches of unlike work on one product, and what joins them."""
    weights = np.random.default_rng(5).standard_normal((4, 64, 64)).astype(np.float32)
    names = [f"w{number}" for number in range(4)]
    return model(
        [
            node("MatMul", ["x", "w0"], ["h"]),
            node("MatMul", ["h", "w1"], ["a"]),
            node("Softmax", ["h"], ["b"]),
            node("ReduceSum", ["h"], ["c"], keepdims=1),
            node("MatMul", ["a", "w2"], ["d"]),
            node("MatMul", ["b", "w3"], ["e"]),
            node("Concat", ["d", "e", "h"], ["f"], axis=1),
            node("Softmax", ["f"], ["g"]),
            node("Mul", ["g", "c"], ["y"]),
        ],
        [value("x", ["batch", 64])],
        [value("y", ["batch", 192])],
        [tensor(name, weight) for name, weight in zip(names, weights)],
    )


def scanning() -> onnx.ModelProto:
    """A recurrence."""
    size = 8
    body = helper.make_graph(
        [node("MatMul", ["state", "w"], ["p"]), node("Add", ["p", "each"], ["next"]), node("Tanh", ["next"], ["out"])],
        "body",
        [value("state", [1, size]), value("each", [1, size])],
        [value("next", [1, size]), value("out", [1, size])],
    )
    return model(
        [node("Scan", ["s", "x"], ["last", "y"], body=body, num_scan_inputs=1)],
        [value("s", [1, size]), value("x", ["steps", 1, size])],
        [value("last", [1, size]), value("y", ["steps", 1, size])],
        [tensor("w", np.eye(size, dtype=np.float32))],
    )


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Plan, GraphRecording]]:
    """The plans that were recorded, and what became of them."""
    found: list[tuple[Plan, GraphRecording]] = []
    real = CudaLaunches.record

    def record(self: CudaLaunches, plan: Plan, *arguments: Any) -> GraphRecording:
        found.append((plan, real(self, plan, *arguments)))
        return found[-1][1]

    monkeypatch.setattr(CudaLaunches, "record", record)
    return found


def closure(waits: Sequence[Sequence[int]]) -> list[set[int]]:
    """All that are done before each starts."""
    found: list[set[int]] = []
    for after in waits:
        found.append({*after, *(before for other in after for before in found[other])})
    return found


def planned_order(plan: Plan) -> list[set[int]]:
    """For each launch that has blocks, those of them that are done before, straight from what a plan means."""
    entries: list[tuple[PlannedLaunch, set[int]]] = []  # unrolled, with numbers of entries here
    ends: list[int] = []
    for entry in plan:
        if isinstance(entry, Repeated):
            for launch in unrolled([entry]):
                entries.append((launch, set(range(len(entries)))))
        else:
            after = set(range(len(entries))) if entry.after is None else {ends[other] for other in entry.after}
            entries.append((entry, after))
        ends.append(len(entries) - 1)
    order = closure([sorted(after) for _, after in entries])
    kept = [number for number, (launch, _) in enumerate(entries) if launch.blocks]
    return [{kept.index(other) for other in order[number] if other in kept} for number in kept]


def node_waits(nodes: Sequence[Node]) -> list[list[int]]:
    numbers = [node.number for node in nodes]
    return [sorted(numbers.index(other) for other in node.after) for node in nodes]


def check_graph(nodes: Sequence[Node], plan: Plan) -> None:
    """The graph's order is the plan's, and no edge can be left out."""
    waits = node_waits(nodes)
    order = closure(waits)
    assert order == planned_order(plan)
    for after in waits:
        assert not any(one in order[other] for one in after for other in after)


# -- models ----------------------------------------------------------------------------------------------------------


def test_a_graph_has_the_order_of_its_plan(
    any_driver: RecordingDriver, recorded: list[tuple[Plan, GraphRecording]]
) -> None:
    loaded = weft.load(branching(), device="cuda")
    loaded.run({"x": np.ones((300, 64), np.float32)})
    ((plan, _),) = recorded
    (nodes,) = any_driver.graphs.values()
    check_graph(nodes, plan)
    assert max(map(len, node_waits(nodes))) > 1  # branches are joined
    assert any(len(node.after) < number for number, node in enumerate(nodes))  # and were side by side
    launched = [launch for launch in unrolled(plan) if launch.blocks]
    assert [(node.blocks, node.lanes) for node in nodes] == [(each.blocks, each.kernel.lanes) for each in launched]
    assert [any_driver.names[node.function] for node in nodes] == [each.kernel.name for each in launched]


def test_addresses_are_inside_of_the_right_buffers(
    any_driver: RecordingDriver, recorded: list[tuple[Plan, GraphRecording]]
) -> None:
    loaded = weft.load(branching(), device="cuda")
    kept = loaded.to_device(np.ones((300, 64), np.float32))
    result = loaded.run({"x": kept}, keep=["y"])["y"]
    ((plan, _),) = recorded
    (nodes,) = any_driver.graphs.values()
    launched = [launch for launch in unrolled(plan) if launch.blocks]
    given, made = (each.place_on(each.home) for each in (kept, result))
    readers = writers = 0
    for found, launch in zip(nodes, launched, strict=True):
        many = len(launch.buffers)
        assert found.words[many:] == tuple(number % 2**64 for number in launch.parameters)
        for address, size in zip(found.words[:many], launch.sizes, strict=True):
            assert any_driver.holds(address, size)
            readers += given.buffer.address <= address < given.buffer.address + given.size
            writers += made.buffer.address <= address < made.buffer.address + made.size
    assert readers
    assert writers


def test_only_what_moved_is_bound_again(driver: RecordingDriver, recorded: list[tuple[Plan, GraphRecording]]) -> None:
    loaded = weft.load(branching(), device="cuda")
    array = np.ones((300, 64), np.float32)
    first, second = loaded.to_device(array), loaded.to_device(array)
    loaded.run({"x": first})
    loaded.run({"x": first})
    assert not driver.updated
    loaded.run({"x": second})
    ((_, recording),) = recorded
    (nodes,) = driver.graphs.values()
    region = min(recording.movable)
    moved = [nodes[use.launch].number for use in recording.movable[region]]
    assert driver.updated == sorted(set(moved))
    for use in recording.movable[region]:
        place = second.place_on(second.home)
        assert nodes[use.launch].words[use.parameter] == place.buffer.address + place.offset + use.offset
    assert len(driver.launched) == 3
    assert driver.calls["cuGraphCreate"] == 1


def test_a_scan(driver: RecordingDriver, recorded: list[tuple[Plan, GraphRecording]]) -> None:
    loaded = weft.load(scanning(), device="cuda")
    for steps in (5, 40):
        loaded.run({"s": np.ones((1, 8), np.float32), "x": np.ones((steps, 1, 8), np.float32)})
    for (plan, _), nodes in zip(recorded[-1:], list(driver.graphs.values())[-1:], strict=True):
        check_graph(nodes, plan)
        launched = [launch for launch in unrolled(plan) if launch.blocks]
        assert [driver.names[each.function] for each in nodes] == [each.kernel.name for each in launched]
        assert any(isinstance(entry, Repeated) for entry in plan)


def test_very_many_launches_go_one_by_one(driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = weft.load(branching(), device="cuda")
    x = np.ones((300, 64), np.float32)
    loaded.run({"x": x})
    (nodes,) = driver.graphs.values()
    monkeypatch.setattr(launches, "_MOST_NODES", len(nodes) - 1)
    loaded.run({"x": x})
    assert driver.submitted == [driver.names[each.function] for each in nodes]
    assert len(driver.launched) == 1


# -- plans that are made up ------------------------------------------------------------------------------------------


def opened() -> tuple[CudaGpu, CudaLaunches, BufferSlice]:
    gpu = open_gpu()
    return gpu, CudaLaunches(gpu, {"one": KernelCode(0, b"one 3")}), BufferSlice(gpu.buffer(1 << 16), 0, 1 << 16)


def planned(blocks: int, after: tuple[int, ...] | None, offset: int = 0) -> PlannedLaunch:
    return PlannedLaunch(ONE, blocks, (Place(0, offset), Place(1, offset)), (7,), sizes=(128, 128), after=after)


def graph_of(plan: Plan, driver: RecordingDriver) -> list[Node]:
    gpu, compiler, memory = opened()
    recording = compiler.record(plan, lambda place, size: BufferSlice(memory.buffer, place.offset, size))
    with gpu.current() as called:
        recording.launch(called, gpu.stream)  # type: ignore[arg-type]
    return list(driver.graphs.values())[-1]  # which goes with the recording


@pytest.mark.parametrize("seed", range(30))
def test_random_plans(driver: RecordingDriver, seed: int) -> None:
    """With launches without blocks, and stretches that are repeated, not even once."""
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    plan: list[PlannedLaunch | Repeated] = []
    for number in range(int(random.integers(1, 25))):
        blocks = int(random.integers(0, 4))
        if random.random() < 0.15:
            inner = tuple(planned(int(random.integers(0, 3)), None) for _ in range(int(random.integers(1, 3))))
            plan.append(Repeated(inner, ((128, 64),) * len(inner), int(random.integers(0, 4))))
        elif random.random() < 0.2:
            plan.append(planned(blocks, None))
        else:
            after = random.choice(number, int(random.integers(0, min(number, 4) + 1)), replace=False) if number else []
            plan.append(planned(blocks, tuple(sorted(map(int, after)))))
    nodes = graph_of(plan, driver)
    order = closure(node_waits(nodes))
    assert all(wanted <= found for wanted, found in zip(planned_order(plan), order, strict=True))


def test_each_turn_of_a_repetition_lies_further(driver: RecordingDriver) -> None:
    nodes = graph_of([Repeated((planned(1, None, 256),), ((128, 64),), 3)], driver)
    start = nodes[0].words[0] - 256
    assert [each.words[:2] for each in nodes] == [
        (start + 256 + 128 * turn, start + 256 + 64 * turn) for turn in range(3)
    ]
    assert node_waits(nodes) == [[], [0], [1]]


@pytest.mark.parametrize("seed", range(60))
def test_direct_waits(seed: int) -> None:
    """Against the reduction by its definition: an edge stays if no other way leads there."""
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 30))
    chance = random.uniform(0.02, 0.6)
    waits: list[tuple[int, ...] | None] = []
    for number in range(count):
        if random.random() < 0.1:
            waits.append(None)
        else:
            waits.append(tuple(other for other in range(number) if random.random() < chance))
    meant = [tuple(range(number)) if after is None else after for number, after in enumerate(waits)]
    order = closure(meant)
    expected = [tuple(one for one in after if not any(one in order[other] for other in after)) for after in meant]
    assert direct_waits(waits) == expected
