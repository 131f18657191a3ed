"""Passes for recurrent cells of elementary ops: products move out of scans, siblings merge, counters become indices."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from peers import onnxruntime_run

import weft
from weft.errors import ExecutionError
from weft.ir.program import Contract, Loop, Map, Scan, TensorProgram, bodies
from weft.ir.scalar import Apply, Load, walk

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(23)


def random(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def parsed(text: str, **weights: Array) -> onnx.ModelProto:
    built = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    built.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return built


def check(built: onnx.ModelProto, *runs: dict[str, Array]) -> TensorProgram:
    """Return the program after all passes; both devices must agree with onnxruntime for all inputs."""
    devices = [weft.load(built, device=device) for device in ("reference", "cpu")]
    for feeds in runs:
        expected = onnxruntime_run(built, feeds)
        for loaded in devices:
            for actual, reference in zip(loaded.run(feeds).values(), expected, strict=True):
                assert actual.shape == reference.shape
                np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-5)
    return devices[0].program


def products(program: TensorProgram) -> int:
    return sum(isinstance(step.primitive, Contract) for step in program.steps)


def scans(program: TensorProgram) -> list[Scan]:
    return [step.primitive for step in program.steps if isinstance(step.primitive, Scan)]


def functions(program: TensorProgram) -> Counter[str]:
    expressions = [step.primitive.expression for step in program.steps if isinstance(step.primitive, Map)]
    return Counter(part.function for tree in expressions for part in walk(tree) if isinstance(part, Apply))


# -- cells -----------------------------------------------------------------------------------------------------------

GATES = """
    i1 = MatMul(xt, wi)
    i2 = MatMul(h, ui)
    i3 = Add(i1, bi)
    i4 = Add(i3, i2)
    i = Sigmoid(i4)
    g1 = MatMul(xt, wg)
    g2 = MatMul(h, ug)
    g3 = Add(g1, g2)
    g = Tanh(g3)
    f1 = MatMul(h, uf)
    f = Sigmoid(f1)
    fc = Mul(f, c)
    ig = Mul(i, g)
    cn = Add(fc, ig)
    ct = Tanh(cn)
    hn = Mul(i, ct)
    shown = Identity(hn)
"""
SCAN_CELL = f"""
agraph (float[T, B, 5] x, float[B, 7] h0, float[B, 7] c0) => (float[B, 7] h1, float[B, 7] c1, float[T, B, 7] all) {{
  h1, c1, all = Scan <num_scan_inputs = 1, body = step (float[B, 7] h, float[B, 7] c, float[B, 5] xt)
                                        => (float[B, 7] hn, float[B, 7] cn, float[B, 7] shown) {{ {GATES} }}>(h0, c0, x)
}}
"""
LOOP_CELL = f"""
agraph (float[T, B, 5] x, float[B, 7] h0, float[B, 7] c0) => (float[B, 7] h1, float[B, 7] c1, float[T, B, 7] all) {{
  shape = Shape<start = 0, end = 1>(x)
  trips = Squeeze(shape)
  yes = Constant<value = bool[1] {{1}}>()
  going = Squeeze(yes)
  h1, c1, all = Loop <body = step (int64 t, bool go, float[B, 7] h, float[B, 7] c)
                                        => (bool go_on, float[B, 7] hn, float[B, 7] cn, float[B, 7] shown) {{
    go_on = Identity(go)
    counter = Cast<to = 6>(t)
    place = Cast<to = 7>(counter)
    xt = Gather(x, place)
    {GATES} }}>(trips, going, h0, c0)
}}
"""


def weights() -> dict[str, Array]:
    inputs = {name: random(5, 7) for name in ("wi", "wg")}
    return {**inputs, **{name: random(7, 7) for name in ("ui", "ug", "uf")}, "bi": random(7)}


def cell_inputs(time: int, batch: int) -> dict[str, Array]:
    return {"x": random(time, batch, 5), "h0": random(batch, 7), "c0": random(batch, 7)}


@pytest.mark.parametrize("text", [SCAN_CELL, LOOP_CELL], ids=["scan", "loop"])
def test_cell_has_one_product_in_its_body(text: str) -> None:
    program = check(parsed(text, **weights()), *(cell_inputs(*sizes) for sizes in ((6, 2), (1, 3), (9, 1))))
    (scan,) = scans(program)
    assert products(scan.body) == 1
    assert products(program) == 2
    assert scan.carries == 2
    assert scan.sequences == 2  # x @ wi + bi, and x @ wg: neither x nor a counter is read any more


def test_gather_at_a_counter_is_a_slice() -> None:
    program = check(parsed(LOOP_CELL, **weights()), cell_inputs(4, 2))
    loads = [part for step in program.steps if isinstance(step.primitive, Map)
             for part in walk(step.primitive.expression) if isinstance(part, Load)]  # fmt: skip
    assert not any(load.checked for load in loads)
    assert not functions(program)["select"]


def test_scan_of_one_iteration_is_inlined() -> None:
    text = SCAN_CELL.replace("float[T, B, 5] x", "float[1, B, 5] x").replace("float[T, B, 7] all", "float[1, B, 7] all")
    program = check(parsed(text, **weights()), cell_inputs(1, 3), cell_inputs(1, 1))
    assert not scans(program)


def test_scan_without_iterations_computes_nothing() -> None:
    text = SCAN_CELL.replace(
        "float[B, 7] h1, float[B, 7] c1, float[T, B, 7] all)", "float[B, 7] h1, float[B, 7] c1)", 1
    )
    built = parsed(text, **weights())
    feeds = cell_inputs(0, 2)
    for device in ("reference", "cpu"):
        actual = weft.load(built, device=device).run(feeds)
        np.testing.assert_array_equal(actual["h1"], feeds["h0"])


def test_products_of_carried_values_stay() -> None:
    built = parsed(
        """
        agraph (float[T, B, 4] x, float[B, 4] h0) => (float[B, 4] h1, float[T, B, 4] all) {
          h1, all = Scan <num_scan_inputs = 1, body = step (float[B, 4] h, float[B, 4] xt)
                                                     => (float[B, 4] hn, float[B, 4] shown) {
            a = Add(h, xt)
            b = MatMul(a, w)
            hn = Tanh(b)
            shown = MatMul(xt, w)
          }>(h0, x)
        }
        """,
        w=random(4, 4),
    )
    (scan,) = scans(check(built, {"x": random(5, 2, 4), "h0": random(2, 4)}))
    assert products(scan.body) == 2  # what is shown is an output, which the body itself must make


def test_products_that_need_much_memory_stay() -> None:
    built = parsed(
        """
        agraph (float[T, B, 2] x, float[B] h0) => (float[B] h1) {
          h1 = Scan <num_scan_inputs = 1, body = step (float[B] h, float[B, 2] xt) => (float[B] hn) {
            wide = MatMul(xt, w)
            most = ReduceMax<keepdims = 0>(wide, last)
            hn = Add(h, most)
          }>(h0, x)
        }
        """,
        w=random(2, 40),
        last=np.int64([1]),
    )
    (scan,) = scans(check(built, {"x": random(5, 3, 2), "h0": random(3)}))
    assert products(scan.body) == 1


def test_loop_invariants_are_computed_once() -> None:
    built = parsed(
        """
        agraph (float[T, B, 4] x, float[4, 4] v, float[4, 4] w, float[B, 4] h0) => (float[B, 4] h1) {
          h1 = Scan <num_scan_inputs = 1, body = step (float[B, 4] h, float[B, 4] xt) => (float[B, 4] hn) {
            product = MatMul(v, w)
            scaled = Tanh(product)
            fed = MatMul(h, scaled)
            hn = Add(fed, xt)
          }>(h0, x)
        }
        """
    )
    feeds = {"x": random(5, 2, 4) / 9, "v": random(4, 4) / 4, "w": random(4, 4) / 4, "h0": random(2, 4)}
    program = check(built, feeds)
    (scan,) = scans(program)
    assert products(program) == products(scan.body) == 1
    assert functions(scan.body)["tanh"] == 0


WHILE = """
agraph (float[N, 4] x, float[4] h0, float limit) => (float[4] h1, float[N, 4] last, float[T, N, 4] shown) {
  yes = Constant<value = bool {1}>()
  trips = Constant<value = int64 {9}>()
  h1, last, shown = Loop <body = step (int64 i, bool c, float[4] h, float[N, 4] carried)
                               => (bool again, float[4] hn, float[N, 4] next, float[N, 4] row) {
    keys = MatMul(FACTOR, w)
    moved = Add(keys, h)
    bent = Tanh(moved)
    hn = ReduceSum<keepdims = 0>(bent, first)
    one = Constant<value = float {1}>()
    row = Div(one, carried)
    NEXT
    sum = ReduceSum<keepdims = 0>(hn)
    again = Less(sum, limit)
  }>(trips, yes, h0, x)
}
"""
ADD_ZERO = """
    wide = Unsqueeze(carried, first)
    same = Add(wide, zero)
    next = Squeeze(same, first)
"""


def while_loop(factor: str, then: str) -> tuple[onnx.ModelProto, Loop]:
    """Build a loop whose number of iterations depends on data; return it after all passes, too."""
    constants = {"first": np.int64([0]), "zero": np.zeros(1, np.float32), "w": random(4, 4)}
    built = parsed(WHILE.replace("FACTOR", factor).replace("NEXT", then), **constants)
    x = random(3, 4)
    x[0] = -0.0
    program = check(
        built, *({"x": x, "h0": random(4), "limit": np.array(limit, np.float32)} for limit in (-90, 0.5, 90))
    )
    (loop,) = (step.primitive for step in program.steps if isinstance(step.primitive, Loop))
    return built, loop


@pytest.mark.parametrize(
    ("factor", "then", "inside"),
    [("x", "next = Neg(carried)", 0), ("carried", ADD_ZERO, 0), ("carried", "next = Neg(carried)", 1)],
    ids=["captured", "carried with 0 added", "carried"],
)
def test_products_of_invariants_are_computed_before_a_loop(factor: str, then: str, inside: int) -> None:
    _, loop = while_loop(factor, then)
    assert products(loop.body) == inside


def test_adding_zero_in_a_loop_changes_signs_of_zeros_after_the_first_iteration() -> None:
    built, _ = while_loop("carried", ADD_ZERO)
    feeds = {"x": np.full((2, 4), -0.0, np.float32), "h0": random(4), "limit": np.array(90, np.float32)}
    shown = weft.load(built, device="cpu").run(feeds)["shown"]
    np.testing.assert_array_equal(shown, onnxruntime_run(built, feeds)[2])
    assert (shown[0] < 0).all()
    assert (shown[1:] > 0).all()


def test_products_of_sizes_that_a_loop_guards_stay() -> None:
    built = parsed(
        """
        agraph (float[N, 4] x, float[M] y, float h0) => (float h1) {
          yes = Constant<value = bool {1}>()
          trips = Constant<value = int64 {3}>()
          h1 = Loop <body = step (int64 i, bool c, float h) => (bool again, float hn) {
            keys = MatMul(x, w)
            column = ReduceSum<keepdims = 0>(keys, last)
            both = Add(column, y)
            sum = ReduceSum<keepdims = 0>(both)
            hn = Add(h, sum)
            again = Less(hn, hn)
          }>(trips, yes, h0)
        }
        """,
        w=random(4, 4),
        last=np.int64([1]),
    )
    program = check(
        built, *({"x": random(n, 4), "y": random(m), "h0": random(1).reshape(())} for n, m in ((3, 3), (1, 5), (4, 1)))
    )
    assert products(program) == 0


# -- siblings --------------------------------------------------------------------------------------------------------

SIBLINGS = """
agraph (float[ROWS, 6] x) => (float[ROWS, 4] y) {
  a = MatMul(x, v)
  b = MatMul(x, w)
  c = Tanh(a)
  d = Sigmoid(b)
  y = Mul(c, d)
}
"""


@pytest.mark.parametrize(("rows", "count"), [("2", 1), ("64", 2), ("N", 2)])
def test_siblings_merge_if_there_are_few_rows(rows: str, count: int) -> None:
    built = parsed(SIBLINGS.replace("ROWS", rows), v=random(6, 4), w=random(6, 4))
    sizes = [int(rows)] if rows.isdigit() else [1, 3, 70]
    assert products(check(built, *({"x": random(size, 6)} for size in sizes))) == count


def test_siblings_of_different_widths() -> None:
    text = SIBLINGS.replace("ROWS", "1")
    assert products(check(parsed(text, v=random(6, 4), w=random(6, 1)), {"x": random(1, 6)})) == 1


def test_siblings_with_other_readers_stay_apart() -> None:
    built = parsed(SIBLINGS.replace("ROWS", "1"), v=random(6, 4), w=random(6, 4))
    built.graph.output.append(onnx.helper.make_tensor_value_info("a", 1, [1, 4]))
    assert products(check(built, {"x": random(1, 6)})) == 2


# -- arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "number", "folded"),
    [("Mul", 1.0, True), ("Div", 1.0, True), ("Sub", 0.0, True), ("Add", 0.0, False), ("Sub", -0.0, False),
     ("Pow", 1.0, True), ("Mul", -1.0, False)],
)  # fmt: skip
def test_neutral_elements_vanish(op: str, number: float, folded: bool) -> None:
    built = parsed(f"agraph (float[N] x) => (float[N] y) {{ y = {op}(x, k) }}", k=np.float32(number).reshape(()))
    x = np.array([0.0, -0.0, 1.5, -np.inf, np.nan], np.float32)
    program = check(built, {"x": x})
    assert (not functions(program)) == folded
    actual = weft.load(built, device="cpu").run({"x": x})["y"]
    np.testing.assert_array_equal(np.signbit(actual[:4]), np.signbit(onnxruntime_run(built, {"x": x})[0][:4]))


def test_a_square_is_a_product() -> None:
    built = parsed("agraph (float[N] x) => (float[N] y) { y = Pow(x, k) }", k=np.float32(2).reshape(()))
    x = np.array([-3.0, 1e-30, 1e30, np.inf], np.float32)
    program = check(built, {"x": x})
    assert functions(program) == {"multiply": 1}


def test_indices_that_may_be_out_of_range_are_checked() -> None:
    built = parsed("agraph (float[N, 3] x) => (float[3] y) { y = Gather(x, k) }", k=np.int64(2).reshape(()))
    check(built, {"x": random(3, 3)}, {"x": random(8, 3)})
    for device in ("reference", "cpu"):
        with pytest.raises(ExecutionError):
            weft.load(built, device=device).run({"x": random(2, 3)})


def test_values_of_different_bodies_have_different_numbers() -> None:
    """Two branches that fold scales into weights create constants of the same type."""
    weights = {
        name: random(4, 4, 1, 1) if name.startswith("w") else random(4, 1, 1) for name in ("w1", "w2", "s1", "s2")
    }
    built = parsed(
        """weights (bool c, float[1,4,3,3] x) => (float[1,4,3,3] y) {
            y = If (c) <
                then_branch = yes () => (float[1,4,3,3] a) { b = Conv(x, w1) a = Mul(b, s1) },
                else_branch = no () => (float[1,4,3,3] d) { e = Conv(x, w2) d = Mul(e, s2) }
            >
        }""",
        **weights,
    )
    x = random(1, 4, 3, 3)
    program = check(built, {"c": np.array(True), "x": x}, {"c": np.array(False), "x": x})
    numbers: list[int] = []
    pending = [program]
    while pending:
        current = pending.pop()
        numbers += [value.number for value in (*current.inputs, *current.constants)]
        numbers += [value.number for step in current.steps for value in step.results]
        pending += [body for step in current.steps for body in bodies(step.primitive)]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("directions", [1, 2])
def test_layers_of_bytes_multiply_bytes(directions: int) -> None:
    """Input products for all steps at once, and those inside the scans, whose weights are constants."""
    size, units = 24, 40
    arrays = {
        "w": RNG.integers(-127, 128, (directions, size, 4 * units)).astype(np.int8),
        "r": RNG.integers(-127, 128, (directions, units, 4 * units)).astype(np.int8),
        "ws": np.full(directions, 0.002, np.float32),
        "wz": np.full(directions, 3, np.int8),
        "rs": np.full(directions, 0.001, np.float32),
        "rz": np.zeros(directions, np.int8),
    }
    direction = ("forward", "bidirectional")[directions - 1]
    built = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[7, 3, {size}] x) => (float[7, {directions}, 3, {units}] y) {{
            y = com.microsoft.DynamicQuantizeLSTM <hidden_size = {units}, direction = "{direction}">
                (x, w, r, , , , , , ws, wz, rs, rz)
        }}"""
    )
    built.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    x = {"x": random(7, 3, size)}
    (reference,) = onnxruntime_run(built, x)
    for device in ("reference", "cpu"):
        loaded = weft.load(built, device=device)
        (actual,) = loaded.run(x).values()
        np.testing.assert_allclose(
            actual, reference, atol=4e-3
        )  # a number that is rounded the other way changes all after it
    program = loaded.program
    programs = [program, *(body for step in program.steps for body in bodies(step.primitive))]
    steps = [step for inside in programs for step in inside.steps if isinstance(step.primitive, Contract)]
    assert len(steps) == 2 * directions
    assert {str(operand.type.dtype) for step in steps for operand in step.operands} == {"uint8", "int8"}
