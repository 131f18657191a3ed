"""Plans as CUDA graphs: nodes, dependencies and addresses."""

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
from weft.backends.cuda.graphs import reduce_waits
from weft.backends.cuda.launches import CudaLaunchCompiler, CudaRecording
from weft.backends.resident.device import BufferSlice
from weft.ir import kernel as ir
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Kernel, Number, Put
from weft.ir.work import PlannedLaunch, Repeated, unrolled
from weft.plan.numbers import NumberTable
from weft.plan.plan import BlockStack, SymbolicLaunch, SymbolicLoop, SymbolicPlace, SymbolicPlan
from weft.plan.plan_numbers import PlanNumbers, SizedNumbers

pytestmark = pytest.mark.usefixtures("graphs_at_once")
Plan = Sequence[PlannedLaunch | Repeated]
ONE = Kernel(
    "one",
    (Buffer("given", DType.float32, False), Buffer("out", DType.float32, True)),
    ("count",),
    32,
    (Put("out", ir.lane(32), Number(1.0, DType.float32)),),
)


def branching() -> onnx.ModelProto:
    """Three different branches of a product, and a node that joins them."""
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
    """A recurrence as a Scan."""
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
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Plan, CudaRecording]]:
    """Recorded plans and their recordings."""
    recordings: list[tuple[Plan, CudaRecording]] = []
    real = CudaLaunchCompiler.record

    def record(self: CudaLaunchCompiler, slots: PlanNumbers, numbers: SizedNumbers, *arguments: Any) -> CudaRecording:
        plan = slots.plan.at(numbers.sizes).launches
        recordings.append((plan, real(self, slots, numbers, *arguments)))
        return recordings[-1][1]

    monkeypatch.setattr(CudaLaunchCompiler, "record", record)
    return recordings


def closure(waits: Sequence[Sequence[int]]) -> list[set[int]]:
    """Compute the ancestors of each launch."""
    ancestors: list[set[int]] = []
    for after in waits:
        ancestors.append({*after, *(before for parent in after for before in ancestors[parent])})
    return ancestors


def planned_order(plan: Plan) -> list[set[int]]:
    """Compute the ancestors of each launch that has blocks from the definition of a plan."""
    entries: list[tuple[PlannedLaunch, set[int]]] = []  # unrolled, with the entries to wait for
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
    nonempty = [number for number, (launch, _) in enumerate(entries) if launch.blocks]
    return [{nonempty.index(other) for other in order[number] if other in nonempty} for number in nonempty]


def node_waits(nodes: Sequence[Node]) -> list[list[int]]:
    numbers = [node.number for node in nodes]
    return [sorted(numbers.index(other) for other in node.after) for node in nodes]


def check_graph(nodes: Sequence[Node], plan: Plan) -> None:
    """Check that the graph orders launches as the plan does, without redundant edges."""
    waits = node_waits(nodes)
    order = closure(waits)
    assert order == planned_order(plan)
    for after in waits:
        assert not any(one in order[other] for one in after for other in after)


# -- models ----------------------------------------------------------------------------------------------------------


def test_a_graph_has_the_order_of_its_plan(
    any_driver: RecordingDriver, recorded: list[tuple[Plan, CudaRecording]]
) -> None:
    loaded = weft.load(branching(), device="cuda")
    loaded.run({"x": np.ones((300, 64), np.float32)})
    ((plan, _),) = recorded
    (nodes,) = any_driver.graphs.values()
    check_graph(nodes, plan)
    assert max(map(len, node_waits(nodes))) > 1  # branches are joined
    assert any(len(node.after) < number for number, node in enumerate(nodes))  # and were side by side
    launched = [launch for launch in unrolled(plan) if launch.blocks]
    assert [(node.blocks, node.lanes) for node in nodes] == [
        (launch.blocks, launch.kernel.lanes) for launch in launched
    ]
    assert [any_driver.names[node.function] for node in nodes] == [launch.kernel.name for launch in launched]


def test_addresses_are_inside_of_the_right_buffers(
    any_driver: RecordingDriver, recorded: list[tuple[Plan, CudaRecording]]
) -> None:
    loaded = weft.load(branching(), device="cuda")
    x = loaded.to_device(np.ones((300, 64), np.float32))
    y = loaded.run({"x": x}, keep=["y"])["y"]
    ((plan, _),) = recorded
    (nodes,) = any_driver.graphs.values()
    launched = [launch for launch in unrolled(plan) if launch.blocks]
    source, target = (tensor.place_on(tensor.home) for tensor in (x, y))
    readers = writers = 0
    for kernel_node, launch in zip(nodes, launched, strict=True):
        count = len(launch.buffers)
        assert kernel_node.words[count:] == tuple(number % 2**64 for number in launch.parameters)
        for address, size in zip(kernel_node.words[:count], launch.sizes, strict=True):
            assert any_driver.holds(address, size)
            readers += source.buffer.address <= address < source.buffer.address + source.size
            writers += target.buffer.address <= address < target.buffer.address + target.size
    assert readers
    assert writers


def test_only_what_moved_is_bound_again(driver: RecordingDriver, recorded: list[tuple[Plan, CudaRecording]]) -> None:
    loaded = weft.load(branching(), device="cuda")
    array = np.ones((300, 64), np.float32)
    first, second = loaded.to_device(array), loaded.to_device(array)
    loaded.run({"x": first})
    loaded.run({"x": first})
    assert not driver.updated
    loaded.run({"x": second})
    ((_, recording),) = recorded
    (nodes,) = driver.graphs.values()
    first_region = min(recording.movable.starts)
    uses = np.flatnonzero(recording.movable.regions == first_region)
    node_of = dict(zip(recording.table.list_filled(), nodes, strict=True))
    place = second.place_on(second.home)
    addresses = place.buffer.address + place.offset + recording.movable.offsets[uses]
    moved = [
        (node_of[number], address)
        for number, address in zip(recording.movable.launches[uses].tolist(), addresses.tolist())
        if number in node_of
    ]
    assert driver.updated == sorted({kernel_node.number for kernel_node, _ in moved})
    assert all(address in kernel_node.words for kernel_node, address in moved)
    assert len(driver.launched) == 3
    assert driver.calls["cuGraphCreate"] == 1


def test_a_scan(driver: RecordingDriver, recorded: list[tuple[Plan, CudaRecording]]) -> None:
    loaded = weft.load(scanning(), device="cuda")
    for steps in (5, 40):
        loaded.run({"s": np.ones((1, 8), np.float32), "x": np.ones((steps, 1, 8), np.float32)})
    for (plan, _), nodes in zip(recorded[-1:], list(driver.graphs.values())[-1:], strict=True):
        check_graph(nodes, plan)
        launched = [launch for launch in unrolled(plan) if launch.blocks]
        assert [driver.names[kernel_node.function] for kernel_node in nodes] == [
            launch.kernel.name for launch in launched
        ]
        assert any(isinstance(entry, Repeated) for entry in plan)


def test_very_many_launches_go_one_by_one(driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = weft.load(branching(), device="cuda")
    x = np.ones((300, 64), np.float32)
    loaded.run({"x": x})
    (nodes,) = driver.graphs.values()
    monkeypatch.setattr(launches, "_MOST_NODES", len(nodes) - 1)
    loaded.run({"x": x})
    assert len(driver.launched) == 2  # there is a graph already
    loaded.run({"x": np.ones((301, 64), np.float32)})
    assert [node.function for node in driver.submitted] == [node.function for node in nodes]
    assert len(driver.launched) == 2


# -- random plans ------------------------------------------------------------------------------------------


def open_compiler() -> tuple[CudaGpu, CudaLaunchCompiler, BufferSlice]:
    gpu = open_gpu()
    return gpu, CudaLaunchCompiler(gpu, {"one": KernelCode(0, b"one 3")}), BufferSlice(gpu.buffer(1 << 16), 0, 1 << 16)


def plan_launch(blocks: int, after: tuple[int, ...] | None, offset: int = 0) -> SymbolicLaunch:
    places = SymbolicPlace(1, offset), SymbolicPlace(2, offset)
    return SymbolicLaunch(ONE, blocks, places, (7,), "", 0, 0, 0, (128, 128), after)


def number_plan(entries: Sequence[SymbolicLaunch | SymbolicLoop]) -> PlanNumbers:
    stack = BlockStack((), 0, ())
    plan = SymbolicPlan(tuple(entries), (stack,), (), (), (), (), (), (), (), (), (), 64)
    return PlanNumbers(plan, (), NumberTable.compute)


def record_graph(slots: PlanNumbers, driver: RecordingDriver) -> list[Node]:
    gpu, compiler, memory = open_compiler()
    numbers = slots.evaluate({})
    assert numbers is not None
    recording = compiler.record(slots, numbers, lambda place, size: BufferSlice(memory.buffer, place.offset, size))
    with gpu.activate() as called:
        recording.launch(called, gpu.stream)  # type: ignore[arg-type]
    return list(driver.graphs.values())[-1]  # before the recording frees it


@pytest.mark.parametrize("seed", range(30))
def test_random_plans(driver: RecordingDriver, seed: int) -> None:
    """Plans with empty launches, and repetitions of any count including 0."""
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    plan: list[SymbolicLaunch | SymbolicLoop] = []
    for number in range(int(random.integers(1, 25))):
        blocks = int(random.integers(0, 4))
        if random.random() < 0.15:
            inner = tuple(plan_launch(int(random.integers(0, 3)), None) for _ in range(int(random.integers(1, 3))))
            plan.append(SymbolicLoop(inner, ((128, 64),) * len(inner), int(random.integers(0, 4))))
        elif random.random() < 0.2:
            plan.append(plan_launch(blocks, None))
        else:
            after = random.choice(number, int(random.integers(0, min(number, 4) + 1)), replace=False) if number else []
            plan.append(plan_launch(blocks, tuple(sorted(map(int, after)))))
    slots = number_plan(plan)
    nodes = record_graph(slots, driver)
    order = closure(node_waits(nodes))
    planned = planned_order(slots.plan.at({}).launches)
    assert all(expected <= actual for expected, actual in zip(planned, order, strict=True))


def test_each_turn_of_a_repetition_lies_further(driver: RecordingDriver) -> None:
    nodes = record_graph(number_plan([SymbolicLoop((plan_launch(1, None, 256),), ((128, 64),), 3)]), driver)
    start = nodes[0].words[0] - 256
    assert [kernel_node.words[:2] for kernel_node in nodes] == [
        (start + 256 + 128 * turn, start + 256 + 64 * turn) for turn in range(3)
    ]
    assert node_waits(nodes) == [[], [0], [1]]


@pytest.mark.parametrize("seed", range(60))
def test_reduce_waits(seed: int) -> None:
    """Compare with the definition: an edge stays if there is no other path."""
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
    explicit = [tuple(range(number)) if after is None else after for number, after in enumerate(waits)]
    order = closure(explicit)
    expected = [tuple(one for one in after if not any(one in order[other] for other in after)) for after in explicit]
    assert reduce_waits(waits) == expected
