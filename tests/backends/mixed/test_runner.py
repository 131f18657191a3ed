"""A program in pieces gives what it gives in one: wherever it is cut, whatever its sizes, from several threads."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from foreign_device.acme_card import CARD, CardDriver
from frontend.samples import branching, model, node, tensor, value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from passes.test_random_graphs import UNSTEADY, graphs
from peers import onnxruntime_run
from placement.forcing import compile_on, forced, optimised, posed, started

from weft.backends.cpu.device import CpuDriver
from weft.backends.device import CompilingDriver, RunOptions
from weft.backends.mixed.runner import MixedRunner
from weft.backends.reference.interpret import GuardError
from weft.errors import ExecutionError, OutOfMemoryError
from weft.ir.mixed import MixedProgram
from weft.ir.tensors import DeviceTensor
from weft.placement.units import Problem

INT64 = TensorProto.INT64
TWINS = (CpuDriver("cpu"), CpuDriver("twin"))
CARD_AND_CPU = (CardDriver("acme_card"), CpuDriver("cpu"))


def _weights(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def layers(count: int = 4) -> onnx.ModelProto:
    """Products with a map after each, for any number of rows."""
    nodes, names = [], ["x", *(f"h{number}" for number in range(1, count)), "y"]
    for number, (before, after) in enumerate(pairwise(names)):
        nodes += [node("MatMul", [before, f"w{number}"], [f"p{number}"], name=f"product{number}")]
        nodes += [node("Tanh", [f"p{number}"], [after], name=f"tanh{number}")]
    weights = [tensor(f"w{number}", _weights(16, 16) / 4) for number in range(count)]
    return model(nodes, [value("x", ["rows", 16])], [value("y", ["rows", 16])], weights)


def towers() -> onnx.ModelProto:
    """Two products that do not need each other, and their sum."""
    nodes = [
        node("MatMul", ["x", "v"], ["a"], name="left"),
        node("MatMul", ["x", "w"], ["b"], name="right"),
        node("Softmax", ["a"], ["c"], name="softmax"),
        node("Add", ["c", "b"], ["y"], name="sum"),
    ]
    weights = [tensor("v", _weights(16, 16)), tensor("w", _weights(16, 16) * 2)]
    return model(nodes, [value("x", ["rows", 16])], [value("y", ["rows", 16]), value("c", ["rows", 16])], weights)


def found_sizes() -> onnx.ModelProto:
    """How many rows there are depends on the data, and is needed beside the rows themselves."""
    nodes = [
        node("NonZero", ["x"], ["where"], name="find"),
        node("Transpose", ["where"], ["places"], name="turn"),
        node("Shape", ["places"], ["shape"], name="count"),
        node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT, name="numbers"),
        node("MatMul", ["numbers", "w"], ["p"], name="product"),
        node("Slice", ["shape", "zero", "one"], ["rows"], name="rows"),
        node("Concat", ["rows", "four"], ["wide"], axis=0, name="wide"),
        node("Expand", ["e", "wide"], ["z"], name="expand"),
        node("Add", ["p", "z"], ["y"], name="sum"),
    ]
    constants = [tensor("zero", [0]), tensor("one", [1]), tensor("four", [4]), tensor("w", _weights(2, 4))]
    inputs = [value("x", ["n", "m"]), value("e", [1, 4])]
    return model(nodes, inputs, [value("y", None), value("z", None)], constants)


def looped() -> onnx.ModelProto:
    """Products around a loop whose body is one too."""
    boolean = TensorProto.BOOL
    body = helper.make_graph(
        [node("MatMul", ["h", "w"], ["p"]), node("Tanh", ["p"], ["after"]), node("Identity", ["going"], ["on"])],
        "turn",
        [value("number", [], INT64), value("going", [], boolean), value("h", ["rows", 8])],
        [value("on", [], boolean), value("after", ["rows", 8])],
    )
    nodes = [
        node("MatMul", ["x", "w"], ["h0"], name="before"),
        node("Loop", ["turns", "", "h0"], ["h1"], body=body, name="loop"),
        node("MatMul", ["h1", "w"], ["y"], name="after"),
    ]
    inputs = [value("x", ["rows", 8]), value("turns", [], INT64)]
    return model(nodes, inputs, [value("y", ["rows", 8])], [tensor("w", _weights(8, 8) / 3)])


def scanned() -> onnx.ModelProto:
    """The last of what a scan stacks, of which one carry is stacked as well, and a product with it."""
    rows = ["rows", 8]
    body = helper.make_graph(
        [
            node("Add", ["h", "x"], ["sum"]),
            node("Tanh", ["sum"], ["h_after"]),
            node("Add", ["c", "h_after"], ["c_after"]),
            node("Identity", ["h_after"], ["stacked"]),
        ],
        "turn",
        [value(name, rows) for name in ("h", "c", "x")],
        [value(name, rows) for name in ("h_after", "c_after", "stacked")],
    )
    nodes = [
        node("Relu", ["xs"], ["r"], name="before"),
        node("Scan", ["z", "z", "r"], ["h_last", "c_last", "all"], body=body, num_scan_inputs=1, name="scan"),
        node("Slice", ["all", "last", "end"], ["s"], name="slice"),
        node("Squeeze", ["s", "first"], ["t"], name="squeeze"),
        node("MatMul", ["t", "w"], ["y"], name="after"),
    ]
    numbers = [tensor("last", [-1]), tensor("end", [2**62]), tensor("first", [0])]
    inputs = [value("xs", ["turns", *rows]), value("z", rows)]
    return model(nodes, inputs, [value("y", rows)], [*numbers, tensor("w", _weights(8, 8))])


def _inputs(built: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    return [feeds[entry.name] for entry in built.graph.input]


def _by_seed(seed: int, devices: int = 2) -> Callable[[int], int]:
    """Units on devices at random, in runs of some length."""
    rng = random.Random(seed)
    state = [rng.randrange(devices)]
    often = rng.choice([0.3, 0.8])

    def choose(_: int) -> int:
        if rng.random() < often:
            state[0] = rng.randrange(devices)
        return state[0]

    return choose


def _split(
    built: onnx.ModelProto,
    drivers: Sequence[CompilingDriver],
    choose: Callable[[int], int],
    side_by_side: bool = False,
    limit: int | None = None,
) -> MixedRunner:
    return started(forced(posed(optimised(built), drivers), drivers, choose, side_by_side), drivers, limit)


def _whole(built: onnx.ModelProto, driver: CompilingDriver) -> Any:
    return driver.start(compile_on(driver, optimised(built)), RunOptions())


SAMPLES: dict[str, tuple[onnx.ModelProto, list[dict[str, Any]]]] = {
    "layers": (layers(), [{"x": _weights(5, 16)}, {"x": _weights(33, 16)}]),
    "towers": (towers(), [{"x": _weights(7, 16)}, {"x": _weights(1, 16)}]),
    "found sizes": (
        found_sizes(),
        [{"x": np.eye(3, 5, dtype=np.float32), "e": _weights(1, 4)}, {"x": _weights(4, 2), "e": _weights(1, 4)}],
    ),
    "looped": (looped(), [{"x": _weights(3, 8), "turns": np.array(4)}, {"x": _weights(6, 8), "turns": np.array(0)}]),
    "branching": (
        branching(),
        [{"x": _weights(2, 3), "c": np.array(True)}, {"x": -_weights(2, 3), "c": np.array(False)}],
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("drivers", [TWINS, CARD_AND_CPU], ids=["twins", "card and cpu"])
@pytest.mark.parametrize("side_by_side", [False, True], ids=["in order", "side by side"])
def test_wherever_it_is_cut(name: str, drivers: tuple[CompilingDriver, ...], side_by_side: bool) -> None:
    built, feeds = SAMPLES[name]
    problem = posed(optimised(built), drivers)
    whole = _whole(built, drivers[1])
    most = 1
    for seed in range(6):
        made = forced(problem, drivers, _by_seed(seed), side_by_side)
        runner = started(made, drivers)
        most = max(most, len(made.pieces))
        for feed in feeds:
            inputs = _inputs(built, feed)
            expected = onnxruntime_run(built, feed)
            found = runner.run(inputs)
            for one, other in zip(found, expected, strict=True):
                assert one.shape == other.shape
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=f"seed {seed}")
            if drivers is TWINS:
                assert _bits(found) == _bits(whole.run(inputs)), f"seed {seed}"
            assert _bits(found) == _bits(runner.run(inputs)), f"seed {seed}"
    assert most > 1


def test_a_scan_cut_off_at_every_place() -> None:
    built = scanned()
    problem = posed(optimised(built), TWINS)
    for place in range(len(problem.units) + 1):
        runner = started(forced(problem, TWINS, lambda number, place=place: int(number >= place)), TWINS)  # type: ignore[misc]
        for turns in (1, 7, 8):
            feeds = {"xs": _weights(turns, 4, 8), "z": np.zeros((4, 8), np.float32)}
            found = runner.run(_inputs(built, feeds))[0]
            np.testing.assert_allclose(found, onnxruntime_run(built, feeds)[0], rtol=1e-4, atol=1e-5)


def _bits(arrays: Sequence[Any]) -> list[bytes]:
    return [np.asarray(array).tobytes() for array in arrays]


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], print_blob=True, deadline=None)
@given(graphs(), st.integers(0, 1000), st.booleans())
def test_random_models(made: tuple[onnx.ModelProto, dict[str, np.ndarray]], seed: int, side_by_side: bool) -> None:
    built, feeds = made
    if any(entry.op_type in UNSTEADY for entry in built.graph.node):
        return
    expected = onnxruntime_run(built, feeds)
    inputs = _inputs(built, feeds)
    try:
        found = _split(built, CARD_AND_CPU, _by_seed(seed), side_by_side).run(inputs)
    except GuardError:  # sizes that a session has another program for
        with pytest.raises(GuardError):
            _whole(built, CARD_AND_CPU[1]).run(inputs)
        return
    for array, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-5)


def test_sizes_that_another_piece_finds_are_told() -> None:
    built, (feed, _) = SAMPLES["found sizes"]
    program = forced(posed(optimised(built), TWINS), TWINS, lambda number: min(number, 1))
    assert program.pieces[1].after == (0,)
    told = [name for piece in program.pieces for name in piece.shown]
    shown = {str(dim) for piece in program.pieces for out in piece.program.outputs for dim in out.type.shape or ()}  # type: ignore[union-attr]
    assert told or shown
    np.testing.assert_allclose(started(program, TWINS).run(_inputs(built, feed))[0], onnxruntime_run(built, feed)[0])


def test_guards_hold_for_the_whole() -> None:
    """Two inputs that the graph says nothing about must have equal sizes; what breaks that is left to the session."""
    built = model(
        [node("Add", ["x", "z"], ["s"]), node("MatMul", ["s", "w"], ["p"]), node("Relu", ["p"], ["y"])],
        [value("x", ["n", 8]), value("z", ["m", 8])],
        [value("y", None)],
        [tensor("w", _weights(8, 8))],
    )
    runner = _split(built, TWINS, lambda number: number % 2)
    x = _weights(4, 8)
    np.testing.assert_allclose(runner.run([x, x])[0], np.maximum((x + x) @ _weights(8, 8), 0), rtol=1e-5)
    if runner.program.guards:
        with pytest.raises(GuardError):
            runner.run([x, x[:3]])


def test_weights_go_only_where_they_are_read() -> None:
    built = layers()
    program = forced(posed(optimised(built), TWINS), TWINS, lambda number: int(number >= 2))
    assert [piece.device for piece in program.pieces] == ["cpu", "twin"]
    whole = _whole(built, TWINS[0]).plan({"rows": 4})
    plans = [TWINS[0].start(piece.program, RunOptions()).plan({"rows": 4}) for piece in program.pieces]
    assert sum(plan.weights for plan in plans if plan is not None) == whole.weights


def test_values_cross_once() -> None:
    """What the processor makes is read by two pieces on the card, and comes there once."""
    built = model(
        [
            node("MatMul", ["x", "w"], ["a"], name="first"),
            node("Softmax", ["a"], ["b"], name="second"),
            node("MatMul", ["a", "w"], ["c"], name="third"),
            node("MatMul", ["c", "w"], ["d"], name="fourth"),
            node("Mul", ["d", "a"], ["e"], name="fifth"),
            node("Softmax", ["e"], ["f"], name="sixth"),
            node("Add", ["b", "f"], ["y"], name="seventh"),
        ],
        [value("x", [8, 16])],
        [value("y", [8, 16])],
        [tensor("w", _weights(16, 16) / 4)],
    )
    where = {"first": 1, "second": 0, "third": 0, "fourth": 1, "fifth": 0, "sixth": 0, "seventh": 0}
    program = _named(built, CARD_AND_CPU, where)
    runner = started(program, CARD_AND_CPU)
    x = _weights(8, 16)
    runner.run([x])
    before = CARD.written
    (found,) = runner.run([x])
    np.testing.assert_allclose(found, onnxruntime_run(built, {"x": x})[0], rtol=1e-4, atol=1e-5)
    up = [entry for entry in program.placement.crossings if entry.device == "acme_card"]
    assert [piece.device for piece in program.pieces].count("acme_card") > 1
    assert CARD.written - before == sum(entry.bytes for entry in up)


def _named(built: onnx.ModelProto, drivers: Sequence[CompilingDriver], where: dict[str, int]) -> MixedProgram:
    """Units on devices by the nodes that they come from."""
    problem = posed(optimised(built), drivers)
    return forced(problem, drivers, lambda number: _device_of(problem, number, where))


def _device_of(problem: Problem, number: int, where: dict[str, int]) -> int:
    origins = " ".join(step.origin for step in problem.units[number].group.steps)
    return next(device for name, device in where.items() if name in origins)


def test_outputs_are_kept_at_home() -> None:
    built = towers()
    x = _weights(7, 16)
    expected = onnxruntime_run(built, {"x": x})
    product = {"left": 1, "softmax": 1, "right": 0}
    for where, kept, other in ((product, 0, 1), ({name: 1 - device for name, device in product.items()}, 1, 0)):
        found = started(_named(built, CARD_AND_CPU, where), CARD_AND_CPU).run([x], keep=[0, 1])
        assert isinstance(found[kept], DeviceTensor)
        assert found[kept].device == "acme_card"
        assert isinstance(found[other], np.ndarray)  # made elsewhere: whoever asked places it
        for one, wanted in zip(found, expected):
            np.testing.assert_allclose(np.asarray(one), wanted, rtol=1e-4, atol=1e-5)


def test_tensors_at_home_are_inputs() -> None:
    built = towers()
    x = _weights(7, 16)
    for where in ({"left": 0, "softmax": 0, "right": 1}, {"left": 1, "softmax": 1, "right": 0}, {"": 0}, {"": 1}):
        runner = started(_named(built, CARD_AND_CPU, where), CARD_AND_CPU)
        placed = CARD_AND_CPU[0].place(x)
        assert _bits(runner.run([placed])) == _bits(runner.run([x]))


@pytest.mark.parametrize("side_by_side", [False, True], ids=["in order", "side by side"])
def test_several_threads_run_it_at_once(side_by_side: bool) -> None:
    built, _ = SAMPLES["layers"]
    runner = _split(built, CARD_AND_CPU, lambda number: number % 2, side_by_side)
    inputs = [_weights(rows, 16) for rows in (1, 3, 5, 8)]
    expected = [_bits(runner.run([x])) for x in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        found = [_bits(runner.run([inputs[number]])) for _ in range(20)]
        wrong.extend(number for bits in found if bits != expected[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_thread_stays() -> None:
    built, feeds = SAMPLES["towers"]
    runner = _split(built, TWINS, lambda number: number % 2, side_by_side=True)
    runner.run(_inputs(built, feeds[0]))
    before = threading.active_count()
    for _ in range(5):
        runner.run(_inputs(built, feeds[0]))
    assert threading.active_count() == before


class _Meeting:
    """A piece that goes on only once another one has begun too."""

    def __init__(self, inner: Any, meeting: threading.Barrier) -> None:
        self.inner, self.meeting = inner, meeting

    def run(self, *given: Any) -> Any:
        self.meeting.wait(60)
        return self.inner.run(*given)


def test_pieces_that_do_not_need_each_other_overlap() -> None:
    built = model(
        [
            node("MatMul", ["x", "v"], ["a"], name="left"),
            node("Softmax", ["a"], ["c"], name="left_rows"),
            node("MatMul", ["x", "w"], ["b"], name="right"),
            node("Softmax", ["b"], ["d"], name="right_rows"),
            node("MatMul", ["c", "d"], ["y"], name="both"),
        ],
        [value("x", [16, 16])],
        [value("y", [16, 16])],
        [tensor("v", _weights(16, 16)), tensor("w", _weights(16, 16) * 2)],
    )
    problem = posed(optimised(built), CARD_AND_CPU)
    where = {"left": 0, "right": 1, "both": 0}
    program = forced(problem, CARD_AND_CPU, lambda number: _device_of(problem, number, where), side_by_side=True)
    assert [piece.after for piece in program.pieces] == [(), (), (0, 1)]
    runner = started(program, CARD_AND_CPU)
    meeting = threading.Barrier(2)
    runner._runners[:2] = [_Meeting(inner, meeting) for inner in runner._runners[:2]]  # type: ignore[list-item]
    x = _weights(16, 16)
    np.testing.assert_allclose(runner.run([x])[0], onnxruntime_run(built, {"x": x})[0], rtol=1e-4, atol=1e-5)


class _Blocked:
    """A piece that says when it has begun, and ends when it may."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.begun, self.may_end = threading.Event(), threading.Event()

    def run(self, *given: Any) -> Any:
        self.begun.set()
        self.may_end.wait(60)
        return self.inner.run(*given)


def test_ctrl_c_ends_a_run_side_by_side() -> None:
    """It does not wait for the piece that has begun, and those that have not do not begin."""
    built, feeds = SAMPLES["towers"]
    runner = _split(built, TWINS, lambda number: number % 2, side_by_side=True)
    inputs = _inputs(built, feeds[0])
    expected = _bits(runner.run(inputs))
    blocked = runner._runners[0] = _Blocked(runner._runners[0])  # type: ignore[assignment]
    later = _Blocked(runner._runners[-1])
    runner._runners[-1] = later  # type: ignore[assignment]
    before = threading.active_count()

    def interrupt() -> None:
        blocked.begun.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    helper_thread = threading.Thread(target=interrupt)
    helper_thread.start()
    with pytest.raises(KeyboardInterrupt):
        runner.run(inputs)
    helper_thread.join()
    blocked.may_end.set()
    later.may_end.set()
    while threading.active_count() > before:
        threading.Event().wait(0.01)
    assert _bits(runner.run(inputs)) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_runs_it() -> None:
    built, feeds = SAMPLES["towers"]
    runner = _split(built, TWINS, lambda number: number % 2, side_by_side=True)
    inputs = _inputs(built, feeds[0])
    expected = _bits(runner.run(inputs))
    child = os.fork()
    if child == 0:
        try:
            os._exit(int(_bits(runner.run(inputs)) != expected))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _gathering() -> onnx.ModelProto:
    nodes = [
        node("MatMul", ["x", "w"], ["p"], name="product"),
        node("Gather", ["p", "at"], ["g"], name="take"),
        node("MatMul", ["x", "v"], ["q"], name="other"),
        node("Softmax", ["q"], ["r"], name="softmax"),
        node("Add", ["g", "r"], ["y"], name="sum"),
    ]
    inputs = [value("x", [4, 16]), value("at", [4], INT64)]
    weights = [tensor("w", _weights(16, 16)), tensor("v", _weights(16, 16) * 2)]
    return model(nodes, inputs, [value("y", None)], weights)


@pytest.mark.parametrize("side_by_side", [False, True], ids=["in order", "side by side"])
def test_an_error_in_one_piece_is_raised_once_all_have_ended(side_by_side: bool) -> None:
    built = _gathering()
    problem = posed(optimised(built), TWINS)
    where = {"take": 1, "product": 1, "softmax": 0, "other": 0, "sum": 0}
    runner = started(forced(problem, TWINS, lambda number: _device_of(problem, number, where), side_by_side), TWINS)
    x = _weights(4, 16)
    good = runner.run([x, np.array([0, 1, 2, 3])])
    running = threading.active_count()
    with pytest.raises(ExecutionError, match="out of range"):
        runner.run([x, np.array([0, 1, 99, 3])])
    assert threading.active_count() <= running
    assert _bits(runner.run([x, np.array([0, 1, 2, 3])])) == _bits(good)


def test_a_device_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    built, feeds = SAMPLES["layers"]
    runner = _split(built, CARD_AND_CPU, lambda number: number % 2)
    monkeypatch.setattr(CARD, "buffer", _full)
    with pytest.raises(OutOfMemoryError, match="acme_card: the card is full"):
        runner.run(_inputs(built, feeds[1]))


def _full(size: int, label: str = "") -> Any:
    raise OutOfMemoryError("the card is full")


def test_memory_is_that_of_all_pieces() -> None:
    built = layers()
    runner = _split(built, TWINS, lambda number: number % 2)
    sizes = {"rows": 32}
    plan = runner.plan(sizes)
    pieces = [TWINS[0].start(piece.program, RunOptions()).plan(sizes) for piece in runner.program.pieces]
    assert plan is not None
    known = [piece for piece in pieces if piece is not None]
    assert plan.arena == sum(piece.arena for piece in known)
    assert plan.weights == sum(piece.weights for piece in known) == 4 * 16 * 16 * 4
    assert plan.workspace == sum(piece.workspace for piece in known)
    assert (plan.inputs, plan.outputs) == (32 * 16 * 4, 32 * 16 * 4)
    assert plan.beside >= 2 * 32 * 16 * 4  # what one piece hands to the next, and what that one makes


def test_a_memory_limit_is_for_all_pieces_together() -> None:
    built = layers()
    found = _split(built, TWINS, lambda number: number % 2)
    plan = found.plan({"rows": 256})
    assert plan is not None
    needed = plan.weights + plan.arena + plan.workspace + max(plan.beside, plan.outputs)
    enough = _split(built, TWINS, lambda number: number % 2, limit=needed)
    x = _weights(256, 16)
    assert _bits(enough.run([x])) == _bits(found.run([x]))
    short = _split(built, TWINS, lambda number: number % 2, limit=needed - 1)
    with pytest.raises(OutOfMemoryError, match=f"needs {needed:,} bytes"):
        short.run([x])
    short.run([x[:8]])
    with pytest.raises(OutOfMemoryError):
        short.plan({"rows": 256})


def test_strings_and_sequences_pass_between_pieces() -> None:
    nodes = [
        node("SequenceConstruct", ["x", "z"], ["s"], name="collect"),
        node("SequenceAt", ["s", "second"], ["t"], name="take"),
        node("MatMul", ["t", "w"], ["y"], name="product"),
    ]
    declared = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    built = model(
        nodes,
        [value("x", [2, 4]), value("z", [3, 4])],
        [value("y", None), declared],
        [tensor("second", np.int64(1)), tensor("w", _weights(4, 4))],
    )
    x, z = _weights(2, 4), _weights(3, 4) + 1
    for seed in range(4):
        y, s = _split(built, TWINS, _by_seed(seed)).run([x, z])
        np.testing.assert_allclose(y, z @ _weights(4, 4), rtol=1e-5)
        assert _bits(s) == _bits([x, z])
