"""The effect of each pass on small programs; no pass changes results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import branching, model, node, subgraph, tensor, value
from onnx import TensorProto, helper
from peers import onnxruntime_run, trace_model

import weft
from weft.backends.reference.interpret import Interpreter, run
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Map, Step, TensorProgram, Value, bodies
from weft.ir.scalar import Apply, Index, Load, walk
from weft.ir.types import TensorType
from weft.passes.movement import simplify_movement

RNG = np.random.default_rng(11)
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def kinds(program: TensorProgram) -> Counter[str]:
    """Count the steps of each kind, including bodies."""
    results = Counter(type(step.primitive).__name__ for step in program.steps)
    for step in program.steps:
        for body in bodies(step.primitive):
            results += kinds(body)
    return results


def functions(program: TensorProgram) -> Counter[str]:
    """Count the scalar functions in maps."""
    expressions = [step.primitive.expression for step in program.steps if isinstance(step.primitive, Map)]
    return Counter(part.function for tree in expressions for part in walk(tree) if isinstance(part, Apply))


def check(built: onnx.ModelProto, **feeds: np.ndarray) -> TensorProgram:
    """Return the program after all passes; its results must agree with onnxruntime and with the traced program."""
    loaded = weft.load(built)
    expected = onnxruntime_run(built, feeds)
    before = trace_model(built)
    plain = run(before, [feeds[entry.name] for entry in before.inputs])
    for results in (list(loaded.run(feeds).values()), plain):
        for array, reference in zip(results, expected, strict=True):
            assert array.dtype == reference.dtype
            assert array.shape == reference.shape
            np.testing.assert_allclose(array, reference, rtol=1e-4, atol=1e-5)
    return loaded.program


def chain(*ops: tuple[str, dict[str, Any]], inputs: Sequence[Any] = (value("x", ["n", 3, 4]),)) -> onnx.ModelProto:
    nodes = [
        node(op, [f"v{number}" if number else "x"], [f"v{number + 1}" if number + 1 < len(ops) else "y"], **attributes)
        for number, (op, attributes) in enumerate(ops)
    ]
    return model(nodes, inputs, [helper.make_empty_tensor_value_info("y")])


# -- movement --------------------------------------------------------------------------------------------------------


def test_transposes_that_cancel_vanish() -> None:
    program = check(
        chain(("Transpose", {"perm": [2, 0, 1]}), ("Transpose", {"perm": [1, 2, 0]}), ("Relu", {})), x=random(2, 3, 4)
    )
    assert len(program.steps) == 1
    assert functions(program).keys() <= {"maximum", "select", "greater", "less"}


def test_transposes_compose() -> None:
    program = check(
        chain(("Transpose", {"perm": [2, 0, 1]}), ("Transpose", {"perm": [0, 2, 1]}), ("Neg", {})), x=random(2, 3, 4)
    )
    assert len(program.steps) == 1


def test_transposes_cancel_around_elementwise_work() -> None:
    built = chain(("Transpose", {"perm": [0, 2, 1]}), ("Exp", {}), ("Transpose", {"perm": [0, 2, 1]}))
    program = check(built, x=random(2, 3, 4))
    assert kinds(program).keys() == {"Map"}


def test_identities_and_dropout_vanish() -> None:
    program = check(chain(("Identity", {}), ("Dropout", {}), ("Identity", {}), ("Neg", {})), x=random(1, 3, 4))
    assert len(program.steps) == 1


def test_a_model_of_identities_has_no_steps() -> None:
    program = check(chain(("Identity", {}), ("Identity", {})), x=random(1, 3, 4))
    assert program.steps == ()


@pytest.mark.parametrize(
    ("first", "casts"), [(TensorProto.DOUBLE, 0), (TensorProto.FLOAT16, 2), (TensorProto.INT32, 2), (FLOAT, 0)]
)
def test_casts_there_and_back_vanish_where_they_lose_nothing(first: int, casts: int) -> None:
    program = check(chain(("Cast", {"to": first}), ("Cast", {"to": FLOAT}), ("Neg", {})), x=random(2, 3, 4) * 9)
    assert functions(program)["cast"] == casts


def test_casts_of_integers() -> None:
    built = chain(("Cast", {"to": INT64}), ("Cast", {"to": FLOAT}), inputs=[value("x", [3], TensorProto.INT32)])
    program = check(built, x=np.int32([2**31 - 1, -(2**31), 7]))
    assert functions(program)["cast"] == 1
    built = chain(
        ("Cast", {"to": TensorProto.INT8}),
        ("Cast", {"to": TensorProto.INT32}),
        inputs=[value("x", [3], TensorProto.INT32)],
    )
    program = check(built, x=np.int32([300, -300, 7]))
    assert functions(program)["cast"] == 2


def test_reshapes_of_reshapes_are_one() -> None:
    built = model(
        [node("Reshape", ["x", "a"], ["p"]), node("Reshape", ["p", "b"], ["q"]), node("Flatten", ["q"], ["y"], axis=2)],
        [value("x", [4, 6])],
        [value("y", None)],
        [tensor("a", [2, 12]), tensor("b", [3, 4, 2])],
    )
    program = check(built, x=random(4, 6))
    assert kinds(program) == {"Reshape": 1}


def test_unsqueeze_and_squeeze_cancel() -> None:
    built = model(
        [node("Unsqueeze", ["x", "axes"], ["u"]), node("Squeeze", ["u", "axes"], ["s"]), node("Neg", ["s"], ["y"])],
        [value("x", ["n", 3])],
        [value("y", None)],
        [tensor("axes", [0, 2])],
    )
    program = check(built, x=random(2, 3))
    assert kinds(program) == {"Map": 1}


@pytest.mark.parametrize(("rows", "maps"), [(1, 1), (5, 2)])
def test_padding_by_reflection_is_done_once(rows: int, maps: int) -> None:
    built = model(
        [node("Pad", ["x", "k"], ["p"], mode="reflect"), node("Mul", ["p", "s"], ["y"])],
        [value("x", [1, "n"])],
        [value("y", None)],
        [tensor("k", np.int64([0, 3, 0, 2])), tensor("s", random(rows, 1))],
    )
    program = check(built, x=random(1, 9))
    assert kinds(program) == {"Map": maps}


def test_sums_of_one_element_vanish() -> None:
    built = model([node("ReduceSum", ["x", "k"], ["s"], keepdims=0), node("Relu", ["s"], ["y"])],
                  [value("x", ["n", 1, 4])], [value("y", None)], [tensor("k", np.int64([1]))])  # fmt: skip
    program = check(built, x=random(3, 1, 4))
    assert kinds(program) == {"Map": 1}


def test_slices_compose_with_what_reads_them() -> None:
    built = model(
        [
            node("Slice", ["x", "one", "end", "zero", "two"], ["a"]),
            node("Slice", ["a", "one", "end", "zero"], ["b"]),
            node("Transpose", ["b"], ["c"]),
            node("Mul", ["c", "c"], ["y"]),
        ],
        [value("x", [9, 4])],
        [value("y", None)],
        [tensor("zero", [0]), tensor("one", [1]), tensor("two", [2]), tensor("end", [9])],
    )
    program = check(built, x=random(9, 4))
    assert kinds(program) == {"Map": 1}


def test_clamped_loads_do_not_read_past_padding() -> None:
    """A load clamped at the border of its operand must not read beyond it."""
    built = model(
        [
            node("Slice", ["x", "one", "three", "zero"], ["s"]),
            node("Pad", ["s", "pads"], ["e"], mode="edge"),
            node("Pad", ["s", "pads"], ["c"], mode="constant"),
            node("Pad", ["s", "pads"], ["r"], mode="reflect"),
        ],
        [value("x", [5])],
        [value("e", None), value("c", None), value("r", None)],
        [tensor("zero", [0]), tensor("one", [1]), tensor("three", [4]), tensor("pads", [2, 2])],
    )
    check(built, x=random(5))


def test_gathers_keep_their_range() -> None:
    """An index is checked against the tensor of the model, not against the larger source."""
    built = model(
        [node("Slice", ["x", "zero", "two", "zero"], ["s"]), node("Gather", ["s", "i"], ["y"])],
        [value("x", [5]), value("i", [1], INT64)],
        [value("y", None)],
        [tensor("zero", [0]), tensor("two", [2])],
    )
    loaded = weft.load(built)
    x = random(5)
    np.testing.assert_array_equal(loaded(x, [-1]), x[1:2])
    with pytest.raises(weft.ExecutionError, match="out of range"):
        loaded(x, [3])


def test_gathers_from_repeated_tensors_keep_their_range() -> None:
    """An index past the end is an error, although all elements are equal."""
    built = model(
        [node("Expand", ["x", "three"], ["e"]), node("Gather", ["e", "i"], ["y"])],
        [value("x", [1]), value("i", [1], INT64)],
        [value("y", None)],
        [tensor("three", [3])],
    )
    loaded = weft.load(built)
    np.testing.assert_array_equal(loaded(np.float32([5]), [2]), [5])
    with pytest.raises(weft.ExecutionError, match="out of range"):
        loaded(np.float32([5]), [7])


def test_clamped_loads_stay_within_their_tensor() -> None:
    """A load past the end gives the last element of its tensor, not the next one of the source."""

    def loading(count: int, offset: int) -> Map:
        return Map(Load(0, (Index(dims.axis(0, count) + offset),), DType.float32))

    x, part, result = (Value(number, TensorType(DType.float32, (size,))) for number, size in enumerate((5, 2, 4)))
    for offset in (0, 2, -2):
        steps = Step(loading(2, 1), (x,), (part,), ""), Step(loading(4, offset), (part,), (result,), "")
        program = TensorProgram((x,), (result,), steps)
        numbers = np.arange(5, dtype=np.float32)
        expected = numbers[1:3][np.clip(np.arange(4) + offset, 0, 1)]
        for stage in (program, simplify_movement(program, Interpreter())):
            np.testing.assert_array_equal(run(stage, [numbers])[0], expected)


# -- constants, duplicates, dead code --------------------------------------------------------------------------------


def test_constants_fold() -> None:
    big = random(64, 100)  # beyond what the trace computes by itself
    built = model(
        [
            node("Transpose", ["w"], ["t"]),
            node("Exp", ["t"], ["e"]),
            node("MatMul", ["e", "w"], ["m"]),
            node("ReduceSum", ["m", "axis"], ["r"], keepdims=0),
            node("Add", ["x", "r"], ["y"]),
        ],
        [value("x", ["n", 100])],
        [value("y", None)],
        [tensor("w", big * 0.1), tensor("axis", [0])],
    )
    program = check(built, x=random(2, 100))
    assert len(program.steps) == 1
    assert {content.shape for content in program.constants.values()} == {(100,)}


def test_folding_does_not_blow_up_memory() -> None:
    built = model(
        [node("MatMul", ["column", "row"], ["w"]), node("ReduceSum", ["w", "axes"], ["s"]),
         node("Add", ["x", "s"], ["y"])],
        [value("x", [1, 1])],
        [value("y", None)],
        [tensor("column", random(3000, 1)), tensor("row", random(1, 3000)), tensor("axes", [0, 1])],
    )  # fmt: skip
    loaded = weft.load(built)
    assert all(np.asarray(content).nbytes < 2**20 for content in loaded.program.constants.values())


def test_computed_weights_fold_even_if_they_grow() -> None:
    """A filter bank computed from two short rows, as in models that resample audio."""
    built = model(
        [node("Add", ["column", "row"], ["t"]), node("Sin", ["t"], ["s"]), node("MatMul", ["x", "s"], ["y"])],
        [value("x", ["n", 600])],
        [value("y", None)],
        [tensor("column", random(600, 1)), tensor("row", random(1, 700))],
    )
    program = check(built, x=random(2, 600))
    assert kinds(program) == {"Contract": 1}
    assert {content.shape for content in program.constants.values()} == {(600, 700)}


@pytest.mark.parametrize(
    ("size", "kernel", "attributes", "left"),
    [
        (1, 3, {"pads": [1] * 4}, 1),
        (2, 3, {"pads": [1] * 4}, 3),
        (2, 7, {"pads": [3] * 4}, 3),
        (2, 7, {"pads": [3] * 4, "strides": [2, 2]}, 2),
        (1, 5, {"pads": [2, 2, 3, 2], "strides": [3, 3]}, 1),
        (3, 5, {"pads": [4] * 4, "dilations": [2, 2]}, 3),
        (1, 3, {"pads": [3, 3, 2, 2], "dilations": [2, 2]}, 1),
        (5, 3, {}, 3),
    ],
)
def test_taps_that_read_only_padding_are_removed(size: int, kernel: int, attributes: dict[str, Any], left: int) -> None:
    built = model(
        [node("Conv", ["x", "w"], ["y"], **attributes)],
        [value("x", ["n", 2, size, size])],
        [value("y", None)],
        [tensor("w", random(3, 2, kernel, kernel))],
    )
    program = check(built, x=random(2, 2, size, size))
    assert {content.shape[2:] for content in program.constants.values()} == {(left, left)}


def test_shape_arithmetic_leaves_nothing_behind() -> None:
    built = model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["b"]),
            node("Mul", ["b", "two"], ["d"]),
            node("Concat", ["d", "rest"], ["t"], axis=0),
            node("Reshape", ["x", "t"], ["r"]),
            node("Neg", ["r"], ["y"]),
        ],
        [value("x", ["n", 6])],
        [value("y", None)],
        [tensor("zero", [0]), tensor("two", [2]), tensor("rest", [-1])],
    )
    program = check(built, x=random(2, 6))
    assert kinds(program) == {"Reshape": 1, "Map": 1}
    assert weft.load(built).outputs[0].shape == ("2*n", 3)


def test_identical_subgraphs_merge() -> None:
    nodes = []
    for side in "ab":
        nodes += [
            node("MatMul", ["x", f"w{side}"], [f"m{side}"]),
            node("Softmax", [f"m{side}"], [f"s{side}"]),
            node("Transpose", [f"s{side}"], [f"t{side}"]),
        ]
    weights = random(3, 3)
    built = model(
        [*nodes, node("Add", ["ta", "tb"], ["y"])],
        [value("x", ["n", 3])],
        [value("y", None)],
        [tensor("wa", weights), tensor("wb", weights)],
    )
    program = check(built, x=random(2, 3))
    assert kinds(program)["Contract"] == 1
    assert functions(program)["exp"] == 1
    assert len(program.constants) == 1


def test_almost_identical_subgraphs_do_not_merge() -> None:
    built = model(
        [
            node("ReduceSum", ["x"], ["a"], keepdims=0),
            node("ReduceMax", ["x"], ["b"], keepdims=0),
            node("Add", ["x", "zero"], ["c"]),
            node("Add", ["x", "minus"], ["d"]),
            node("Div", ["one", "c"], ["e"]),
            node("Div", ["one", "d"], ["f"]),
        ],
        [value("x", [2])],
        [value(name, None) for name in "abef"],
        [tensor("zero", np.float32([0.0])), tensor("minus", np.float32([-0.0])), tensor("one", np.float32([1]))],
    )
    check(built, x=np.float32([-0.0, 3]))


def test_random_numbers_do_not_merge() -> None:
    built = model(
        [
            node("RandomNormalLike", ["x"], ["a"]),
            node("RandomNormalLike", ["x"], ["b"]),
            node("Sub", ["a", "b"], ["y"]),
        ],
        [value("x", [100])],
        [value("y", None)],
    )
    assert np.count_nonzero(weft.load(built)(random(100))) > 90


def test_dead_code_is_removed() -> None:
    built = model(
        [
            node("Neg", ["x"], ["y"]),
            node("MatMul", ["x", "w"], ["unused"]),
            node("Softmax", ["unused"], ["also"]),
            node("NonZero", ["x"], ["never"]),
        ],
        [value("x", ["n", 3])],
        [value("y", None)],
        [tensor("w", random(3, 3)), tensor("idle", random(5, 5))],
    )
    program = check(built, x=random(2, 3))
    assert len(program.steps) == 1
    assert not program.constants


def test_dead_code_in_branches_is_removed() -> None:
    lazy = subgraph("lazy", [node("Exp", ["x"], ["unused"]), node("Neg", ["x"], ["p"])], ["p"])
    other = subgraph("other", [node("Neg", ["x"], ["q"]), node("Exp", ["x"], ["waste"])], ["q"])
    built = model(
        [node("If", ["c"], ["y"], then_branch=lazy, else_branch=other)],
        [value("x"), value("c", [], BOOL)],
        [value("y", None)],
    )
    program = check(built, x=random(2, 3), c=np.array(True))
    assert kinds(program) == {"Branch": 1, "Map": 2}


def test_sizes_from_data_survive_dead_code() -> None:
    """A step that determines a size remains while the size is used, even if its result is not read."""
    built = model(
        [
            node("NonZero", ["x"], ["i"]),
            node("Shape", ["i"], ["s"]),
            node("Slice", ["s", "one", "two"], ["n"]),
            node("Expand", ["fill", "n"], ["y"]),
        ],
        [value("x", ["k"])],
        [value("y", None)],
        [tensor("one", [1]), tensor("two", [2]), tensor("fill", np.float32(3))],
    )
    check(built, x=np.float32([0, 1, 2, 0]))
    check(built, x=np.zeros(3, np.float32))


def test_branch_with_a_constant_condition_disappears() -> None:
    built = branching()
    flag = tensor("c", np.array(True))
    del built.graph.input[1]
    built.graph.initializer.append(flag)
    program = check(built, x=random(2, 3))
    assert "Branch" not in kinds(program)


# -- scales ----------------------------------------------------------------------------------------------------------


def normalized(
    op: str, weights: np.ndarray, channels: int, *, bias: bool = False, **attributes: Any
) -> onnx.ModelProto:
    """A convolution, batch normalisation and a scale after it."""
    rng = np.random.default_rng(channels)
    parameters = {name: rng.random(channels).astype(np.float32) + 0.5 for name in ("g", "b", "m", "v", "k")}
    return model(
        [
            node(op, ["x", "w", "k"] if bias else ["x", "w"], ["c"], **attributes),
            node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"]),
            node("Mul", ["n", "half"], ["y"]),
        ],
        [value("x", ["n", 4, 7, "w"])],
        [value("y", None)],
        [tensor("w", weights), tensor("half", np.float32(0.5))]
        + [tensor(name, array) for name, array in parameters.items()],
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("op", "shape", "channels", "attributes"),
    [
        ("Conv", (6, 4, 3, 3), 6, {}),
        ("Conv", (6, 2, 3, 3), 6, {"group": 2, "strides": [2, 1]}),
        ("Conv", (4, 1, 3, 3), 4, {"group": 4, "pads": [1, 1, 1, 1]}),
        ("ConvTranspose", (4, 6, 3, 3), 6, {}),
        ("ConvTranspose", (4, 3, 2, 2), 6, {"group": 2, "strides": [2, 2]}),
    ],
)
def test_batch_normalisation_is_folded_into_the_convolution(
    op: str, shape: tuple[int, ...], channels: int, attributes: dict[str, Any], bias: bool
) -> None:
    built = normalized(op, random(*shape), channels, bias=bias, **attributes)
    program = check(built, x=random(2, 4, 7, 6))
    assert kinds(program) == {"Convolve": 1, "Map": 1}
    assert functions(program) == {"add": 1}


def test_scales_of_a_shared_convolution_stay() -> None:
    built = normalized("Conv", random(6, 4, 3, 3), 6)
    built.graph.output.append(value("c", None))
    program = check(built, x=random(2, 4, 7, 6))
    assert functions(program)["multiply"] + functions(program)["divide"] > 0


def test_scales_that_are_not_per_channel_stay() -> None:
    built = model(
        [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "s"], ["d"]), node("Mul", ["d", "d"], ["y"])],
        [value("x", [1, 2, 4, 4])],
        [value("y", None)],
        [tensor("w", random(3, 2, 1, 1)), tensor("s", random(3, 4, 1))],
    )
    program = check(built, x=random(1, 2, 4, 4))
    assert functions(program)["multiply"] >= 2


def test_scales_that_overflow_stay() -> None:
    built = model(
        [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "s"], ["d"]), node("Mul", ["d", "t"], ["y"])],
        [value("x", [1, 1, 1, 1])],
        [value("y", None)],
        [tensor("w", np.full((1, 1, 1, 1), 1e20, np.float32)), tensor("s", np.float32([[[1e20]]])),
         tensor("t", np.float32([[[np.inf]]]))],
    )  # fmt: skip
    check(built, x=np.zeros((1, 1, 1, 1), np.float32))
