"""Small files that ask for much: chains, trees, fans, diamonds, nesting, huge numbers.

Each structure is made by a function of one number, how large it is. What must hold for any of them: a model is loaded
and runs as onnxruntime runs it, or is refused with a WeftError, in bounded seconds and bounded memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Make = Callable[[int], ModelProto]

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
HUGE = (2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
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
    """One node of x and some constants, in the order they are given; a name that ends in ? is left empty."""
    names = ["" if name.endswith("?") else name for name in constants]
    kept = {name: content for name, content in constants.items() if not name.endswith("?") and name != "x"}
    inputs = [value("x", shape)]
    return model([helper.make_node(op, names, ["y"], **attributes)], inputs, None, kept)


# -- long ------------------------------------------------------------------------------------------------------------


def chain(length: int, link: Callable[[str, str, int], NodeProto], **given: Any) -> ModelProto:
    names = ["x", *(f"v{i}" for i in range(length - 1)), "y"]
    return model([link(a, b, i) for i, (a, b) in enumerate(zip(names, names[1:]))], **given)


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
    """Every link takes the model's input as well, so that it lives to the end."""
    return lambda size: chain(size, lambda a, b, i: helper.make_node(op, [a, "x"], [b]))


def diamonds(op: str) -> Make:
    return lambda size: chain(size, lambda a, b, i: helper.make_node(op, [a, a], [b]))


def products(size: int) -> ModelProto:
    constants = {"w": np.eye(4, dtype=np.float32)}
    return chain(
        size,
        lambda a, b, i: helper.make_node("MatMul", [a, "w"], [b]),
        constants=constants,
        inputs=[value("x", ("n", 4))],
    )


def convolutions(size: int) -> ModelProto:
    constants = {"w": np.zeros((4, 4, 3, 3), np.float32)}
    return chain(
        size,
        lambda a, b, i: helper.make_node("Conv", [a, "w"], [b], pads=[1] * 4),
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
        lambda a, b, i: helper.make_node("Slice", [a, "s", "e", "a"], [b]),
        constants=constants,
        inputs=[value("x", ("n",))],
    )


def pads(size: int) -> ModelProto:
    constants = {"p": np.array([1, 0])}
    return chain(
        size, lambda a, b, i: helper.make_node("Pad", [a, "p"], [b]), constants=constants, inputs=[value("x", ("n",))]
    )


def gathers(size: int) -> ModelProto:
    constants = {"i": np.array([1, 0, 3, 2])}
    return chain(size, lambda a, b, i: helper.make_node("Gather", [a, "i"], [b]), constants=constants)


def concats(size: int) -> ModelProto:
    """x grows by a few elements with every link."""
    return chain(
        size, lambda a, b, i: helper.make_node("Concat", [a, "x"], [b], axis=0), inputs=[value("x", ("n",))]
    )


def doublings(size: int) -> ModelProto:
    """x grows twofold with every link."""
    return chain(
        size, lambda a, b, i: helper.make_node("Concat", [a, a], [b], axis=0), inputs=[value("x", ("n",))]
    )


def reductions(size: int) -> ModelProto:
    return chain(
        size,
        lambda a, b, i: helper.make_node("ReduceSum", [a], [b], keepdims=1),
        inputs=[value("x", ("n", 4))],
    )


def softmaxes(size: int) -> ModelProto:
    return chain(size, lambda a, b, i: helper.make_node("Softmax", [a], [b]), inputs=[value("x", ("n", 4))])


def sums_and_reductions(size: int) -> ModelProto:
    """Each link subtracts its mean: a diamond with a reduction on one side."""
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
    """A chain whose last node comes first."""
    made = unary("Relu")(size)
    nodes = list(reversed(made.graph.node))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def useless(size: int) -> ModelProto:
    """Nodes that no output needs."""
    nodes = [helper.make_node("Exp", ["x"], [f"v{i}"]) for i in range(size)]
    return model([*nodes, helper.make_node("Relu", ["x"], ["y"])])


def same(size: int) -> ModelProto:
    """The same node again and again."""
    nodes = [helper.make_node("Exp", ["x"], [f"v{i}"]) for i in range(size)]
    return model([*nodes, helper.make_node("Sum", [f"v{i}" for i in range(size)], ["y"])])


def constant_nodes(size: int) -> ModelProto:
    """A chain of constants, all of it known at load."""
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


# -- wide ------------------------------------------------------------------------------------------------------------


def fan_out(size: int) -> ModelProto:
    constants = {f"c{i}": np.full(4, i, np.float32) for i in range(size)}
    nodes = [helper.make_node("Add", ["x", f"c{i}"], [f"y{i}"]) for i in range(size)]
    return model(nodes, None, [value(f"y{i}", None) for i in range(size)], constants)


def fan_in_out(op: str, **attributes: Any) -> Make:
    """One value used by many, all joined by one node."""

    def make(size: int) -> ModelProto:
        constants = {f"c{i}": np.full(4, i, np.float32) for i in range(size)}
        nodes = [helper.make_node("Mul", ["x", f"c{i}"], [f"v{i}"]) for i in range(size)]
        joined = helper.make_node(op, [f"v{i}" for i in range(size)], ["y"], **attributes)
        return model([*nodes, joined], None, None, constants)

    return make


def fan_sum_products(size: int) -> ModelProto:
    """Many heavy steps whose results are added."""
    constants = {f"c{i}": np.full((4, 4), i, np.float32) for i in range(size)}
    nodes = [helper.make_node("MatMul", ["x", f"c{i}"], [f"v{i}"]) for i in range(size)]
    nodes.append(helper.make_node("Sum", [f"v{i}" for i in range(size)], ["y"]))
    return model(nodes, [value("x", (1, 4))], None, constants)


def many_inputs(size: int) -> ModelProto:
    names = [f"x{i}" for i in range(size)]
    return model([helper.make_node("Sum", names, ["y"])], [value(name) for name in names])


def many_symbols(size: int) -> ModelProto:
    """Inputs of as many sizes, joined along an axis."""
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
    made = model([node], [value("x", (4,), TensorProto.STRING)])
    made.opset_import.add(domain="ai.onnx.ml", version=4)
    return made


def tree_ensemble(size: int) -> ModelProto:
    """A decision tree that is one long chain of nodes."""
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
    made = model([node], [value("x", (3, 1))])
    made.opset_import.add(domain="ai.onnx.ml", version=3)
    return made


# -- deep ------------------------------------------------------------------------------------------------------------


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
    """Each function calls the next twice."""
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
    """Each function calls the next in both branches of an If."""
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
    """Functions that call the next one thrice, the last of which do nothing at all."""
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
            type = helper.make_sequence_type_proto(type) if kind == "sequence" else helper.make_optional_type_proto(type)
        inputs = [value("x"), helper.make_value_info("s", type)]
        return model([helper.make_node("Relu", ["x"], ["y"])], inputs)

    return make


def sequences(size: int) -> ModelProto:
    """A sequence that grows by one with every node."""
    nodes = [helper.make_node("SequenceConstruct", ["x"], ["v0"])]
    nodes += [helper.make_node("SequenceInsert", [f"v{i}", "x"], [f"v{i + 1}"]) for i in range(size)]
    return model([*nodes, helper.make_node("ConcatFromSequence", [f"v{size}"], ["y"], axis=0)])


def nested_sequences(size: int) -> ModelProto:
    """Optionals of optionals; onnx allows none of these, weft may."""
    nodes = [helper.make_node("Optional", ["x"], ["v0"])]
    nodes += [helper.make_node("Optional", [f"v{i}"], [f"v{i + 1}"]) for i in range(size)]
    nodes.append(helper.make_node("OptionalHasElement", [f"v{size}"], ["b"]))
    return model([*nodes, helper.make_node("Cast", ["b"], ["y"], to=FLOAT)])


# -- sizes that are computed with ------------------------------------------------------------------------------------


def shape_sums(size: int) -> ModelProto:
    """n + n, again and again: a number of 2**size."""
    nodes = [helper.make_node("Shape", ["x"], ["v0"])]
    nodes += [helper.make_node("Add", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(size)]
    nodes.append(helper.make_node("Cast", [f"v{size}"], ["y"], to=FLOAT))
    return model(nodes, [value("x", ("n",))])


def shape_squares(size: int) -> ModelProto:
    """n * n, again and again: a power of 2**size."""
    nodes = [helper.make_node("Shape", ["x"], ["v0"])]
    nodes += [helper.make_node("Mul", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(size)]
    nodes.append(helper.make_node("Cast", [f"v{size}"], ["y"], to=FLOAT))
    return model(nodes, [value("x", ("n",))])


def shape_polynomials(size: int) -> ModelProto:
    """(1 + a)(1 + b)(1 + c)…: 2**size terms."""
    names = [f"n{i}" for i in range(size)]
    nodes = [helper.make_node("Constant", [], ["v0"], value_ints=[1])]
    for i in range(size):
        nodes.append(helper.make_node("Shape", [f"x{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("Add", [f"s{i}", "one"], [f"t{i}"]))
        nodes.append(helper.make_node("Mul", [f"v{i}", f"t{i}"], [f"v{i + 1}"]))
    nodes.append(helper.make_node("Cast", [f"v{size}"], ["y"], to=FLOAT))
    return model(nodes, [value(f"x{i}", (name,)) for i, name in enumerate(names)], None, {"one": [1]})


def shape_extremes(*ops: str) -> Make:
    """Quotients of minima of quotients: nested expressions that do not simplify."""

    def make(size: int) -> ModelProto:
        nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Identity", ["s"], ["v0"])]
        for i in range(size):
            op = ops[i % len(ops)]
            other = {"Div": "two", "Mod": "s", "Min": "s", "Max": "s", "Add": f"v{max(i - 1, 0)}", "Mul": "s"}[op]
            nodes.append(helper.make_node(op, [f"v{i}", other], [f"v{i + 1}"]))
        nodes.append(helper.make_node("Cast", [f"v{size}"], ["y"], to=FLOAT))
        return model(nodes, [value("x", ("n",))], None, {"two": [2]})

    return make


def shape_pairs(size: int) -> ModelProto:
    """v = max(v // 2 + w, w // 3 + v), twice the expression with every link."""
    nodes = [helper.make_node("Shape", ["x"], ["v0"]), helper.make_node("Shape", ["z"], ["w0"])]
    for i in range(size):
        nodes.append(helper.make_node("Div", [f"v{i}", "two"], [f"a{i}"]))
        nodes.append(helper.make_node("Div", [f"w{i}", "three"], [f"b{i}"]))
        nodes.append(helper.make_node("Add", [f"a{i}", f"w{i}"], [f"p{i}"]))
        nodes.append(helper.make_node("Add", [f"b{i}", f"v{i}"], [f"q{i}"]))
        nodes.append(helper.make_node("Max", [f"p{i}", f"q{i}"], [f"v{i + 1}"]))
        nodes.append(helper.make_node("Min", [f"p{i}", f"q{i}"], [f"w{i + 1}"]))
    nodes.append(helper.make_node("Cast", [f"v{size}"], ["y"], to=FLOAT))
    return model(nodes, [value("x", ("n",)), value("z", ("m",))], None, {"two": [2], "three": [3]})


def strided(size: int) -> ModelProto:
    """Pools of stride 2 with odd pads: a floor within a floor."""
    return chain(
        size,
        lambda a, b, i: helper.make_node("MaxPool", [a], [b], kernel_shape=[3], strides=[2], pads=[1, 2]),
        inputs=[value("x", (1, 1, "n"))],
    )


def reshapes(size: int) -> ModelProto:
    constants = {"flat": [-1], "pair": [-1, 2], "zero": [0, 2, -1]}
    kinds = ("flat", "pair", "zero")
    return chain(
        size,
        lambda a, b, i: helper.make_node("Reshape", [a, kinds[i % 3] if i % 3 < 2 else "pair"], [b]),
        constants=constants,
        inputs=[value("x", ("n", "m", 2))],
    )


def flattened_symbols(size: int) -> ModelProto:
    """A tensor of many symbolic dims made flat, then cut in two."""
    names = [f"n{i}" for i in range(size)]
    nodes = [helper.make_node("Flatten", ["x"], ["v"], axis=size // 2)]
    nodes.append(helper.make_node("Transpose", ["v"], ["w"]))
    nodes.append(helper.make_node("Shape", ["x"], ["s"]))
    nodes.append(helper.make_node("Reshape", ["w", "s"], ["y"]))
    return model(nodes, [value("x", names)])


def joined_symbols(size: int) -> ModelProto:
    """Concat along two axes of inputs with sizes of their own: polynomials of many symbols."""
    inputs = [value(f"x{i}", (f"a{i}", 2)) for i in range(size)]
    others = [value(f"z{i}", (3, f"b{i}")) for i in range(size)]
    nodes = [
        helper.make_node("Concat", [v.name for v in inputs], ["p"], axis=0),
        helper.make_node("Concat", [v.name for v in others], ["q"], axis=1),
        helper.make_node("Flatten", ["p"], ["pf"], axis=0),
        helper.make_node("Flatten", ["q"], ["qf"], axis=0),
        helper.make_node("Transpose", ["pf"], ["pt"]),
        helper.make_node("MatMul", ["pt", "qf"], ["m"]),
        helper.make_node("Flatten", ["m"], ["y"], axis=0),
    ]
    return model(nodes, [*inputs, *others])


def many_dims(size: int) -> ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"])], [value("x", (1,) * size)])


def einsum(size: int) -> ModelProto:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[:size]
    node = helper.make_node("Einsum", ["x"], ["y"], equation=f"{letters}->{letters[::-1]}")
    return model([node], [value("x", (1,) * len(letters))])


def einsum_operands(size: int) -> ModelProto:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    pairs = [letters[i % 52] + letters[(i + 1) % 52] for i in range(size)]
    equation = f"{','.join(pairs)}->{pairs[0][0]}"
    names = [f"x{i}" for i in range(size)]
    return model([helper.make_node("Einsum", names, ["y"], equation=equation)], [value(n, (2, 2)) for n in names])


# -- huge numbers ----------------------------------------------------------------------------------------------------


def of_huge(make: Make) -> Make:
    """`size` chooses among the numbers that fit into no memory."""
    return lambda size: make(HUGE[size % len(HUGE)])


def declared(size: int) -> ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"])], [value("x", (size, size))])


def declared_channels(size: int) -> ModelProto:
    constants = {"w": np.zeros((4, 4, 3, 3), np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    return model([node], [value("x", (1, 4, size, 5))], None, constants)


def padded_convolution(size: int) -> ModelProto:
    constants = {"w": np.zeros((4, 4, 3, 3), np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[0, size, 0, size])
    return model([node], [value("x", (1, 4, 8, 8))], None, constants)


def convolution(**attributes: Any) -> Make:
    def make(size: int) -> ModelProto:
        given = {name: [size] * count for name, count in attributes.items()}
        constants = {"w": np.zeros((4, 4, 3, 3), np.float32)}
        node = helper.make_node("Conv", ["x", "w"], ["y"], **given)
        return model([node], [value("x", (1, 4, 8, 8))], None, constants)

    return make


def transposed_convolution(**attributes: Any) -> Make:
    def make(size: int) -> ModelProto:
        given = {name: [size] * count for name, count in attributes.items()}
        constants = {"w": np.zeros((4, 4, 3, 3), np.float32)}
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **given)
        return model([node], [value("x", (1, 4, 8, 8))], None, constants)

    return make


def pool(op: str, **attributes: int) -> Make:
    def make(size: int) -> ModelProto:
        given = {"kernel_shape": [2, 2]} | {name: [size] * count for name, count in attributes.items()}
        return model([helper.make_node(op, ["x"], ["y"], **given)], [value("x", (1, 4, 8, 8))])

    return make


def no_output_channels(size: int) -> ModelProto:
    constants = {"w": np.zeros((0, size, 3, 3), np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    return model([node], [value("x", (1, size, 8, 8))], None, constants)


def claimed(field: str) -> Make:
    """An initializer that claims more elements than it has data for."""

    def make(size: int) -> ModelProto:
        made = model([helper.make_node("Add", ["x", "c"], ["y"])])
        tensor = made.graph.initializer.add(name="c", data_type=FLOAT, dims=[size, 1])
        if field == "raw_data":
            tensor.raw_data = b"\0" * 16
        elif field == "float_data":
            tensor.float_data.extend([0.0] * 4)
        return made

    return make


def sparse(size: int) -> ModelProto:
    made = model([helper.make_node("Add", ["x", "c"], ["y"])])
    values = helper.make_tensor("c", FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", INT64, [1], [3])
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [size]))
    return made


def computed(op: str, **more: Any) -> Make:
    """An op whose output's size is a constant."""

    def make(size: int) -> ModelProto:
        attributes, constants = dict(more), {}
        match op:
            case "ConstantOfShape":
                constants = {"s": [size, size]}
            case "Expand":
                constants = {"x": None, "s": [size, 4]}
            case "Tile":
                constants = {"x": None, "s": [size]}
            case "Range":
                constants = {"a": np.int64(0), "b": np.int64(size), "c": np.int64(1)}
            case "OneHot":
                constants = {"i": [0, 1], "d": np.int64(size), "v": np.array([0.0, 1.0], np.float32)}
            case "Pad":
                constants = {"x": None, "p": [size, size]}
            case "Resize":
                constants = {"x": None, "r?": None, "s?": None, "n": [size]}
            case "Upsample":
                constants = {"x": None, "r?": None, "s": np.array([float(size)], np.float32)}
            case "Trilu":
                constants = {"s": np.zeros((2, 2), np.float32), "k": np.int64(size)}
            case "TopK":
                constants = {"x": None, "k": [size]}
            case "Reshape":
                constants = {"x": None, "s": [size, -1]}
            case "Slice":
                constants = {"x": None, "a": [-size], "b": [size], "c": [0], "d": [size]}
            case "HannWindow" | "BlackmanWindow":
                constants = {"n": np.int64(size)}
            case "Bernoulli" | "Dropout":
                constants = {"x": None}
        if op in ("RandomNormal", "RandomUniform"):
            attributes["shape"] = [size, size]
        made = one(op if op != "Upsample" else "Resize", constants, **attributes)
        return made

    return make


def folded(op: str) -> Make:
    """The same of constants only, reduced to one element: folding would make the whole of it."""

    def make(size: int) -> ModelProto:
        made = computed(op)(size)
        node = made.graph.node[0]
        for i, name in enumerate(node.input):
            if name == "x":
                node.input[i] = "k"
                made.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "k"))
        node.output[0] = "v"
        made.graph.node.append(helper.make_node("Cast", ["v"], ["f"], to=FLOAT))
        made.graph.node.append(helper.make_node("ReduceMax", ["f"], ["m"], keepdims=0))
        made.graph.node.append(helper.make_node("Add", ["x", "m"], ["y"]))
        return made

    return make


def attribute(op: str, name: str, listed: int = 0, shape: Sequence[Any] = (1, 4, 8, 8), **more: Any) -> Make:
    def make(size: int) -> ModelProto:
        given = {name: [size] * listed if listed else size, **more}
        return one(op, {"x": None}, shape, **given)

    return make


def negative(make: Make) -> Make:
    return lambda size: make(-size)


def endless_loop(size: int) -> ModelProto:
    """So many iterations; not for a run, which may take them all."""
    inner = subgraph(
        "body",
        [helper.make_node("Identity", ["c"], ["o"]), helper.make_node("Relu", ["s"], ["r"])],
        [value("i", (), INT64), value("c", (), BOOL), value("s", (4,))],
        [value("o", (), BOOL), value("r", (4,))],
    )
    return model([helper.make_node("Loop", ["t", "", "x"], ["y"], body=inner)], None, None, {"t": np.array(size)})


def endless_stack(size: int) -> ModelProto:
    """So many iterations, each of which leaves a row."""
    inner = subgraph(
        "body",
        [helper.make_node("Identity", ["c"], ["o"]), helper.make_node("Relu", ["x"], ["r"])],
        [value("i", (), INT64), value("c", (), BOOL)],
        [value("o", (), BOOL), value("r", (4,))],
    )
    return model([helper.make_node("Loop", ["t", ""], ["y"], body=inner)], None, None, {"t": np.array(size)})


# -- files -----------------------------------------------------------------------------------------------------------


def long_names(size: int) -> ModelProto:
    name = "n" * size
    nodes = [helper.make_node("Relu", ["x"], [name], name=name), helper.make_node("Exp", [name], ["y"])]
    return model(nodes, [value("x", (name, name + "m"))])


def long_strings(size: int) -> ModelProto:
    made = model([helper.make_node("Relu", ["x"], ["y"])])
    made.doc_string = made.producer_name = made.graph.name = "d" * size
    made.metadata_props.add(key="k" * size, value="v" * size)
    return made


def many_declarations(size: int) -> ModelProto:
    made = model([helper.make_node("Relu", ["x"], ["y"])])
    made.graph.value_info.extend(value(f"v{i}", (f"n{i}",)) for i in range(size))
    made.metadata_props.extend(onnx.StringStringEntryProto(key=f"k{i}", value="v") for i in range(size))
    return made


def many_opsets(size: int) -> ModelProto:
    made = model([helper.make_node("Relu", ["x"], ["y"])])
    made.opset_import.extend(helper.make_opsetid(f"d{i}", 1) for i in range(size))
    return made


def many_functions(size: int) -> ModelProto:
    opsets = [helper.make_opsetid("", OPSET)]
    nodes = [helper.make_node("Relu", ["a"], ["b"])]
    functions = [helper.make_function("local", f"f{i}", ["a"], ["b"], nodes, opsets) for i in range(size)]
    return model([helper.make_node("f0", ["x"], ["y"], domain="local")], functions=functions)


def many_calls(size: int) -> ModelProto:
    opsets = [helper.make_opsetid("", OPSET)]
    nodes = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Neg", ["b"], ["c"])]
    functions = [helper.make_function("local", "f", ["a"], ["c"], nodes, opsets)]
    made = chain(size, lambda a, b, i: helper.make_node("f", [a], [b], domain="local"), functions=functions)
    return made


def many_empty_inputs(size: int) -> ModelProto:
    return model([helper.make_node("Relu", ["x"] + [""] * size, ["y"] + [""] * size)])


def same_names(size: int) -> ModelProto:
    """All nodes have one name."""
    return chain(size, lambda a, b, i: helper.make_node("Relu", [a], [b], name="n"))


def shadowed_names(size: int) -> ModelProto:
    """A value that every branch defines again."""
    nodes = []
    for i in range(size):
        sides = [
            subgraph(side, [helper.make_node(op, ["x"], ["v"])], [], [value("v", None)])
            for side, op in (("then", "Relu"), ("else", "Neg"))
        ]
        nodes.append(helper.make_node("If", ["c"], [f"w{i}"], then_branch=sides[0], else_branch=sides[1]))
    nodes.append(helper.make_node("Relu", ["x"], ["v"]))
    nodes.append(helper.make_node("Sum", ["v", *(f"w{i}" for i in range(size))], ["y"]))
    return model(nodes, [value("x"), value("c", (), BOOL)])


def aliases(size: int) -> ModelProto:
    return unary("Identity")(size)


def text(size: int) -> ModelProto:
    """A tensor of strings, one of them long."""
    nodes = [
        helper.make_node("Constant", [], ["c"], value_strings=["a" * size, "b", "c", "d"]),
        helper.make_node("StringConcat", ["x", "c"], ["y"]),
    ]
    return model(nodes, [value("x", (4,), TensorProto.STRING)], [value("y", None, TensorProto.STRING)])
