"""Long, wide and deep models; each function builds one of the given size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Make = Callable[[int], ModelProto]

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
OPSET = 21


def value(name: str, shape: Sequence[Any] | None = (4,), dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
    constants: dict[str, Any] | None = None,
    functions: Sequence[FunctionProto] = (),
    opset: int = OPSET,
) -> ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(
        list(nodes), "bomb", list(inputs or [value("x")]), list(outputs or [value("y", None)]), initializer=tensors
    )
    opsets = [helper.make_opsetid("", opset)]
    if functions:
        opsets.append(helper.make_opsetid("local", 1))
    return helper.make_model(graph, functions=list(functions), opset_imports=opsets, ir_version=10)


def one(op: str, constants: dict[str, Any], shape: Sequence[Any] | None = (4,), **attributes: Any) -> ModelProto:
    """Build a model of one node; `constants` are its inputs in order, omitted if the name ends in `?`."""
    names = ["" if name.endswith("?") else name for name in constants]
    initializers = {name: content for name, content in constants.items() if not name.endswith("?") and name != "x"}
    inputs = [value("x", shape)]
    return model([helper.make_node(op, names, ["y"], **attributes)], inputs, None, initializers)


# -- long --------------------------------------------------------------------------------------------------------------


def chain(length: int, link: Callable[[str, str, int], NodeProto], **options: Any) -> ModelProto:
    names = ["x", *(f"v{i}" for i in range(length - 1)), "y"]
    return model([link(a, b, i) for i, (a, b) in enumerate(pairwise(names))], **options)


def unary(*ops: str) -> Make:
    return lambda size: chain(size, lambda a, b, i: helper.make_node(ops[i % len(ops)], [a], [b]))


def with_constant(*ops: str) -> Make:
    constants = {"c": np.full(4, 1.0, np.float32)}
    return lambda size: chain(
        size, lambda a, b, i: helper.make_node(ops[i % len(ops)], [a, "c"], [b]), constants=constants
    )


def many_constants(size: int) -> ModelProto:
    constants = {f"c{i}": np.full(4, i, np.float32) for i in range(size)}
    return chain(size, lambda a, b, i: helper.make_node("Add", [a, f"c{i}"], [b]), constants=constants)


def with_input(op: str) -> Make:
    """Build a chain in which every link also reads the model's input, which stays live to the end."""
    return lambda size: chain(size, lambda a, b, _: helper.make_node(op, [a, "x"], [b]))


def diamonds(op: str) -> Make:
    return lambda size: chain(size, lambda a, b, _: helper.make_node(op, [a, a], [b]))


def products(size: int) -> ModelProto:
    constants = {"w": np.eye(4, dtype=np.float32)}
    return chain(
        size,
        lambda a, b, _: helper.make_node("MatMul", [a, "w"], [b]),
        constants=constants,
        inputs=[value("x", ("n", 4))],
    )


def convolutions(size: int) -> ModelProto:
    constants = {"w": np.zeros((4, 4, 3, 3), np.float32)}
    return chain(
        size,
        lambda a, b, _: helper.make_node("Conv", [a, "w"], [b], pads=[1] * 4),
        constants=constants,
        inputs=[value("x", (1, 4, 5, 5))],
    )


def transposes(size: int) -> ModelProto:
    return chain(
        size,
        lambda a, b, i: helper.make_node("Transpose" if i % 2 else "Relu", [a], [b]),
        inputs=[value("x", ("n", "m"))],
    )


def slices(size: int) -> ModelProto:
    constants = {"s": [1], "e": [2**63 - 1], "a": [0]}
    return chain(
        size,
        lambda a, b, _: helper.make_node("Slice", [a, "s", "e", "a"], [b]),
        constants=constants,
        inputs=[value("x", ("n",))],
    )


def pads(size: int) -> ModelProto:
    constants = {"p": np.array([1, 0])}
    return chain(
        size, lambda a, b, _: helper.make_node("Pad", [a, "p"], [b]), constants=constants, inputs=[value("x", ("n",))]
    )


def gathers(size: int) -> ModelProto:
    constants = {"i": np.array([1, 0, 3, 2])}
    return chain(size, lambda a, b, _: helper.make_node("Gather", [a, "i"], [b]), constants=constants)


def concats(size: int) -> ModelProto:
    """Build a chain that grows by the size of x with every link."""
    return chain(size, lambda a, b, _: helper.make_node("Concat", [a, "x"], [b], axis=0), inputs=[value("x", ("n",))])


def doublings(size: int) -> ModelProto:
    """Build a chain that doubles its size with every link."""
    return chain(size, lambda a, b, _: helper.make_node("Concat", [a, a], [b], axis=0), inputs=[value("x", ("n",))])


def reductions(size: int) -> ModelProto:
    return chain(
        size,
        lambda a, b, _: helper.make_node("ReduceSum", [a], [b], keepdims=1),
        inputs=[value("x", ("n", 4))],
    )


def softmaxes(size: int) -> ModelProto:
    return chain(size, lambda a, b, _: helper.make_node("Softmax", [a], [b]), inputs=[value("x", ("n", 4))])


def sums_and_reductions(size: int) -> ModelProto:
    """Build a chain whose links subtract the mean: diamonds with a reduction on one side."""
    nodes = []
    for i in range(size):
        before, after = f"v{i}" if i else "x", f"v{i + 1}" if i < size - 1 else "y"
        nodes.append(helper.make_node("ReduceMean", [before], [f"m{i}"], keepdims=1))
        nodes.append(helper.make_node("Sub", [before, f"m{i}"], [after]))
    return model(nodes, [value("x", ("n", 4))])


def casts(size: int) -> ModelProto:
    def link(a: str, b: str, i: int) -> NodeProto:
        return helper.make_node("Cast", [a], [b], to=TensorProto.DOUBLE if i % 2 == 0 else FLOAT)

    return chain(size - size % 2 or 2, link)


def unsorted(size: int) -> ModelProto:
    """Build a chain in reverse order."""
    built = unary("Relu")(size)
    nodes = list(reversed(built.graph.node))
    del built.graph.node[:]
    built.graph.node.extend(nodes)
    return built


def useless(size: int) -> ModelProto:
    """Build dead nodes."""
    nodes = [helper.make_node("Exp", ["x"], [f"v{i}"]) for i in range(size)]
    return model([*nodes, helper.make_node("Relu", ["x"], ["y"])])


def same(size: int) -> ModelProto:
    """Build many equal nodes."""
    nodes = [helper.make_node("Exp", ["x"], [f"v{i}"]) for i in range(size)]
    return model([*nodes, helper.make_node("Sum", [f"v{i}" for i in range(size)], ["y"])])


def constant_nodes(size: int) -> ModelProto:
    """Build a chain that can be folded into a constant."""
    nodes = [helper.make_node("Constant", [], ["v0"], value_floats=[1.0] * 4)]
    nodes += [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(size)]
    return model([*nodes, helper.make_node("Add", ["x", f"v{size}"], ["y"])])


def recurrences(size: int) -> ModelProto:
    constants = {"w": np.zeros((1, 12, 3), np.float32), "r": np.zeros((1, 12, 3), np.float32), "s": [0, 0, -1]}
    nodes = []
    for i in range(size):
        before, after = f"v{i}" if i else "x", f"v{i + 1}" if i < size - 1 else "y"
        nodes.append(helper.make_node("LSTM", [before, "w", "r"], [f"h{i}"], hidden_size=3))
        nodes.append(helper.make_node("Squeeze", [f"h{i}", "one"], [after]))
    return model(nodes, [value("x", ("t", "n", 3))], None, {**constants, "one": [1]})


# -- wide --------------------------------------------------------------------------------------------------------------


def fan_out(size: int) -> ModelProto:
    constants = {f"c{i}": np.full(4, i, np.float32) for i in range(size)}
    nodes = [helper.make_node("Add", ["x", f"c{i}"], [f"y{i}"]) for i in range(size)]
    return model(nodes, None, [value(f"y{i}", None) for i in range(size)], constants)


def fan_in_out(op: str, **attributes: Any) -> Make:
    """Build one value that many nodes read, joined by one node."""

    def make(size: int) -> ModelProto:
        constants = {f"c{i}": np.full(4, i, np.float32) for i in range(size)}
        nodes = [helper.make_node("Mul", ["x", f"c{i}"], [f"v{i}"]) for i in range(size)]
        joined = helper.make_node(op, [f"v{i}" for i in range(size)], ["y"], **attributes)
        return model([*nodes, joined], None, None, constants)

    return make


def fan_sum_products(size: int) -> ModelProto:
    """Build the sum of many products."""
    constants = {f"c{i}": np.full((4, 4), i, np.float32) for i in range(size)}
    nodes = [helper.make_node("MatMul", ["x", f"c{i}"], [f"v{i}"]) for i in range(size)]
    nodes.append(helper.make_node("Sum", [f"v{i}" for i in range(size)], ["y"]))
    return model(nodes, [value("x", (1, 4))], None, constants)


def many_inputs(size: int) -> ModelProto:
    names = [f"x{i}" for i in range(size)]
    return model([helper.make_node("Sum", names, ["y"])], [value(name) for name in names])


def many_symbols(size: int) -> ModelProto:
    """Build a Concat of inputs with a dynamic dim each."""
    inputs = [value(f"x{i}", (f"n{i}",)) for i in range(size)]
    return model([helper.make_node("Concat", [v.name for v in inputs], ["y"], axis=0)], inputs)


def same_input(op: str, **attributes: Any) -> Make:
    return lambda size: model([helper.make_node(op, ["x"] * size, ["y"], **attributes)])


def tree(op: str) -> Make:
    def make(size: int) -> ModelProto:
        constants = {f"c{i}": np.full(4, i, np.float32) for i in range(size)}
        nodes = [helper.make_node("Add", ["x", f"c{i}"], [f"l0_{i}"]) for i in range(size)]
        row, level = [f"l0_{i}" for i in range(size)], 0
        while len(row) > 1:
            level += 1
            joined = []
            for i in range(0, len(row) - 1, 2):
                joined.append(f"l{level}_{i}")
                nodes.append(helper.make_node(op, [row[i], row[i + 1]], [joined[-1]]))
            row = joined + row[len(row) - len(row) % 2 :]
        nodes.append(helper.make_node("Relu", row, ["y"]))
        return model(nodes, None, None, constants)

    return make


def many_parts(size: int) -> ModelProto:
    names = [f"y{i}" for i in range(size)]
    node = helper.make_node("Split", ["x"], names, num_outputs=size, axis=0)
    return model([node], [value("x", (size,))], [value(name, None) for name in names])


def many_parts_joined(size: int) -> ModelProto:
    names = [f"v{i}" for i in range(size)]
    split = helper.make_node("Split", ["x"], names, num_outputs=size, axis=0)
    return model([split, helper.make_node("Concat", names[::-1], ["y"], axis=0)], [value("x", (size,))])


def many_attributes(size: int) -> ModelProto:
    node = helper.make_node("Relu", ["x"], ["y"])
    node.attribute.extend(helper.make_attribute(f"a{i}", i) for i in range(size))
    return model([node])


def long_attribute(size: int) -> ModelProto:
    return one("Transpose", {"x": None}, (2, 3), perm=list(range(size)))


def long_constant(size: int) -> ModelProto:
    nodes = [helper.make_node("Constant", [], ["c"], value_ints=[1] * size), helper.make_node("Size", ["c"], ["n"])]
    return model([*nodes, helper.make_node("Cast", ["n"], ["f"], to=FLOAT), helper.make_node("Add", ["x", "f"], ["y"])])


def label_encoder(size: int) -> ModelProto:
    keys = [f"k{i}" for i in range(size)]
    node = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=keys, values_floats=[1.0] * size
    )
    built = model([node], [value("x", (4,), TensorProto.STRING)])
    built.opset_import.add(domain="ai.onnx.ml", version=4)
    return built


def tree_ensemble(size: int) -> ModelProto:
    """Build a decision tree that is one long chain of nodes."""
    count = 2 * size + 1
    modes = ["BRANCH_LEQ" if i % 2 == 0 and i < count - 1 else "LEAF" for i in range(count)]
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[0] * count,
        nodes_nodeids=list(range(count)),
        nodes_featureids=[0] * count,
        nodes_modes=modes,
        nodes_values=[float(i) for i in range(count)],
        nodes_truenodeids=[i + 1 if mode != "LEAF" else 0 for i, mode in enumerate(modes)],
        nodes_falsenodeids=[i + 2 if mode != "LEAF" else 0 for i, mode in enumerate(modes)],
        target_treeids=[0] * (size + 1),
        target_nodeids=[i for i, mode in enumerate(modes) if mode == "LEAF"],
        target_ids=[0] * (size + 1),
        target_weights=[1.0] * (size + 1),
    )
    built = model([node], [value("x", (3, 1))])
    built.opset_import.add(domain="ai.onnx.ml", version=3)
    return built


# -- deep --------------------------------------------------------------------------------------------------------------


def subgraph(name: str, nodes: Sequence[NodeProto], inputs: Sequence[Any], outputs: Sequence[Any]) -> GraphProto:
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs))


def nested_ifs(size: int) -> ModelProto:
    def body(depth: int) -> list[NodeProto]:
        if depth == size:
            return [helper.make_node("Relu", ["x"], [f"y{depth}"])]
        branches = [
            subgraph(f"{kind}{depth}", body(depth + 1), [], [value(f"y{depth + 1}", None)])
            if kind == "then"
            else subgraph(
                f"{kind}{depth}", [helper.make_node("Neg", ["x"], [f"e{depth}"])], [], [value(f"e{depth}", None)]
            )
            for kind in ("then", "else")
        ]
        return [helper.make_node("If", ["c"], [f"y{depth}"], then_branch=branches[0], else_branch=branches[1])]

    nodes = [*body(0), helper.make_node("Identity", ["y0"], ["y"])]
    return model(nodes, [value("x"), value("c", (), BOOL)])


def nested_loops(constant_trips: bool, grows: bool = False) -> Make:
    def make(size: int) -> ModelProto:
        def body(depth: int, carried: str) -> list[NodeProto]:
            if depth == size:
                if grows:
                    return [helper.make_node("Concat", [carried, "x"], [f"y{depth}"], axis=0)]
                return [helper.make_node("Relu", [carried], [f"y{depth}"])]
            inner = subgraph(
                f"body{depth}",
                [helper.make_node("Identity", [f"c{depth}"], [f"o{depth}"]), *body(depth + 1, f"s{depth}")],
                [value(f"i{depth}", (), INT64), value(f"c{depth}", (), BOOL), value(f"s{depth}", None)],
                [value(f"o{depth}", (), BOOL), value(f"y{depth + 1}", None)],
            )
            return [helper.make_node("Loop", ["t", "", carried], [f"y{depth}"], body=inner)]

        nodes = [*body(0, "x"), helper.make_node("Identity", ["y0"], ["y"])]
        shape = ("n",) if grows else (4,)
        if constant_trips:
            return model(nodes, [value("x", shape)], None, {"t": np.array(1)})
        return model(nodes, [value("x", shape), value("t", (), INT64)])

    return make


def nested_scans(size: int) -> ModelProto:
    def body(depth: int, carried: str, scanned: str) -> list[NodeProto]:
        if depth == size:
            return [helper.make_node("Add", [carried, scanned], [f"y{depth}"])]
        inner = subgraph(
            f"body{depth}",
            body(depth + 1, f"s{depth}", "z" if depth < size - 1 else f"z{depth}"),
            [value(f"s{depth}", (4,)), value(f"z{depth}", (4,))],
            [value(f"y{depth + 1}", (4,))],
        )
        return [helper.make_node("Scan", [carried, scanned], [f"y{depth}"], body=inner, num_scan_inputs=1)]

    nodes = [*body(0, "x", "z"), helper.make_node("Identity", ["y0"], ["y"])]
    return model(nodes, [value("x"), value("z", (2, 4))])


def loops_after_loops(size: int) -> ModelProto:
    nodes = []
    for i in range(size):
        before, after = f"v{i}" if i else "x", f"v{i + 1}" if i < size - 1 else "y"
        inner = subgraph(
            f"body{i}",
            [helper.make_node("Identity", ["c"], ["o"]), helper.make_node("Relu", ["s"], ["r"])],
            [value("i", (), INT64), value("c", (), BOOL), value("s", None)],
            [value("o", (), BOOL), value("r", None)],
        )
        nodes.append(helper.make_node("Loop", ["t", "", before], [after], body=inner))
    return model(nodes, [value("x"), value("t", (), INT64)])


def functions_doubling(size: int) -> ModelProto:
    """Build functions that call the next twice."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    functions = []
    for i in range(size):
        inner = ("Relu", "") if i == size - 1 else (f"f{i + 1}", "local")
        nodes = [
            helper.make_node(inner[0], ["a"], ["b"], domain=inner[1]),
            helper.make_node(inner[0], ["b"], ["c"], domain=inner[1]),
        ]
        functions.append(helper.make_function("local", f"f{i}", ["a"], ["c"], nodes, opsets))
    return model([helper.make_node("f0", ["x"], ["y"], domain="local")], functions=functions)


def functions_deep(size: int) -> ModelProto:
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    functions = []
    for i in range(size):
        inner = ("Relu", "") if i == size - 1 else (f"f{i + 1}", "local")
        nodes = [helper.make_node(inner[0], ["a"], ["b"], domain=inner[1])]
        functions.append(helper.make_function("local", f"f{i}", ["a"], ["b"], nodes, opsets))
    return model([helper.make_node("f0", ["x"], ["y"], domain="local")], functions=functions)


def functions_in_branches(size: int) -> ModelProto:
    """Build functions that call the next in both branches of an If."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    functions = []
    for i in range(size):
        inner = ("Relu", "") if i == size - 1 else (f"f{i + 1}", "local")
        sides = [
            subgraph(side, [helper.make_node(inner[0], ["a"], [side], domain=inner[1])], [], [value(side, None)])
            for side in ("t", "e")
        ]
        if inner[1]:
            for side in sides:
                side.node[0].input.append("c")
        nodes = [helper.make_node("If", ["c"], ["b"], then_branch=sides[0], else_branch=sides[1])]
        functions.append(helper.make_function("local", f"f{i}", ["a", "c"], ["b"], nodes, opsets))
    node = helper.make_node("f0", ["x", "c"], ["y"], domain="local")
    return model([node], [value("x"), value("c", (), BOOL)], functions=functions)


def functions_empty(size: int) -> ModelProto:
    """Build functions that call the next three times; the last is empty."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    functions = []
    for i in range(size):
        nodes = [
            helper.make_node(f"f{i + 1}", [a], [b], domain="local") for a, b in (("a", "b"), ("b", "c"), ("c", "d"))
        ]
        functions.append(helper.make_function("local", f"f{i}", ["a"], ["d"], nodes, opsets))
    functions.append(helper.make_function("local", f"f{size}", ["a"], ["a"], [], opsets))
    call = helper.make_node("f0", ["x"], ["v"], domain="local")
    return model([call, helper.make_node("Relu", ["v"], ["y"])], functions=functions)


def deep_type(kind: str) -> Make:
    def make(size: int) -> ModelProto:
        type = helper.make_tensor_type_proto(FLOAT, (4,))
        for _ in range(size):
            type = (
                helper.make_sequence_type_proto(type) if kind == "sequence" else helper.make_optional_type_proto(type)
            )
        inputs = [value("x"), helper.make_value_info("s", type)]
        return model([helper.make_node("Relu", ["x"], ["y"])], inputs)

    return make


def sequences(size: int) -> ModelProto:
    """Build a sequence that grows by one with every node."""
    nodes = [helper.make_node("SequenceConstruct", ["x"], ["v0"])]
    nodes += [helper.make_node("SequenceInsert", [f"v{i}", "x"], [f"v{i + 1}"]) for i in range(size)]
    return model([*nodes, helper.make_node("ConcatFromSequence", [f"v{size}"], ["y"], axis=0)])


def nested_sequences(size: int) -> ModelProto:
    """Build nested optionals, which ONNX does not allow."""
    nodes = [helper.make_node("Optional", ["x"], ["v0"])]
    nodes += [helper.make_node("Optional", [f"v{i}"], [f"v{i + 1}"]) for i in range(size)]
    nodes.append(helper.make_node("OptionalHasElement", [f"v{size}"], ["b"]))
    return model([*nodes, helper.make_node("Cast", ["b"], ["y"], to=FLOAT)])
