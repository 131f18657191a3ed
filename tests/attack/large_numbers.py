"""Models with computed, huge or only declared sizes, and files with long unused fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from attack.structures import (
    BOOL,
    FLOAT,
    INT64,
    OPSET,
    Make,
    chain,
    model,
    one,
    subgraph,
    unary,
    value,
)
from onnx import ModelProto, TensorProto, helper, numpy_helper

HUGE = (2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)


# -- computed sizes ----------------------------------------------------------------------------------------------------


def shape_sums(size: int) -> ModelProto:
    """Build n + n repeatedly: 2**size times n."""
    nodes = [helper.make_node("Shape", ["x"], ["v0"])]
    nodes += [helper.make_node("Add", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(size)]
    nodes.append(helper.make_node("Cast", [f"v{size}"], ["y"], to=FLOAT))
    return model(nodes, [value("x", ("n",))])


def shape_squares(size: int) -> ModelProto:
    """Build n * n repeatedly: n to the power of 2**size."""
    nodes = [helper.make_node("Shape", ["x"], ["v0"])]
    nodes += [helper.make_node("Mul", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(size)]
    nodes.append(helper.make_node("Cast", [f"v{size}"], ["y"], to=FLOAT))
    return model(nodes, [value("x", ("n",))])


def shape_polynomials(size: int) -> ModelProto:
    """Build (1 + a)(1 + b)(1 + c)…, which has 2**size terms."""
    names = [f"n{i}" for i in range(size)]
    nodes = [helper.make_node("Constant", [], ["v0"], value_ints=[1])]
    for i in range(size):
        nodes.append(helper.make_node("Shape", [f"x{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("Add", [f"s{i}", "one"], [f"t{i}"]))
        nodes.append(helper.make_node("Mul", [f"v{i}", f"t{i}"], [f"v{i + 1}"]))
    nodes.append(helper.make_node("Cast", [f"v{size}"], ["y"], to=FLOAT))
    return model(nodes, [value(f"x{i}", (name,)) for i, name in enumerate(names)], None, {"one": [1]})


def shape_extremes(*ops: str) -> Make:
    """Build nested quotients and minima of sizes, which do not simplify."""

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
    """Build v = max(v // 2 + w, w // 3 + v), whose expression doubles with every link."""
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
    """Build pools of stride 2 with odd pads: nested floor divisions."""
    return chain(
        size,
        lambda a, b, _: helper.make_node("MaxPool", [a], [b], kernel_shape=[3], strides=[2], pads=[1, 2]),
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
    """Build a Flatten of many dynamic dims, a Transpose and a Reshape."""
    names = [f"n{i}" for i in range(size)]
    nodes = [helper.make_node("Flatten", ["x"], ["v"], axis=size // 2)]
    nodes.append(helper.make_node("Transpose", ["v"], ["w"]))
    nodes.append(helper.make_node("Shape", ["x"], ["s"]))
    nodes.append(helper.make_node("Reshape", ["w", "s"], ["y"]))
    return model(nodes, [value("x", names)])


def joined_symbols(size: int) -> ModelProto:
    """Build two Concats of inputs with different dynamic dims: polynomials of many symbols."""
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


# -- huge numbers ------------------------------------------------------------------------------------------------------


def of_huge(make: Make) -> Make:
    """Replace `size` by one of the huge numbers."""
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
        node_attributes = {name: [size] * count for name, count in attributes.items()}
        constants = {"w": np.zeros((4, 4, 3, 3), np.float32)}
        node = helper.make_node("Conv", ["x", "w"], ["y"], **node_attributes)
        return model([node], [value("x", (1, 4, 8, 8))], None, constants)

    return make


def transposed_convolution(**attributes: Any) -> Make:
    def make(size: int) -> ModelProto:
        node_attributes = {name: [size] * count for name, count in attributes.items()}
        constants = {"w": np.zeros((4, 4, 3, 3), np.float32)}
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **node_attributes)
        return model([node], [value("x", (1, 4, 8, 8))], None, constants)

    return make


def pool(op: str, **attributes: int) -> Make:
    def make(size: int) -> ModelProto:
        node_attributes = {"kernel_shape": [2, 2]} | {name: [size] * count for name, count in attributes.items()}
        return model([helper.make_node(op, ["x"], ["y"], **node_attributes)], [value("x", (1, 4, 8, 8))])

    return make


def no_output_channels(size: int) -> ModelProto:
    constants = {"w": np.zeros((0, size, 3, 3), np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    return model([node], [value("x", (1, size, 8, 8))], None, constants)


def claimed(field: str) -> Make:
    """Build an initializer that declares more elements than it has data for."""

    def make(size: int) -> ModelProto:
        built = model([helper.make_node("Add", ["x", "c"], ["y"])])
        tensor = built.graph.initializer.add(name="c", data_type=FLOAT, dims=[size, 1])
        if field == "raw_data":
            tensor.raw_data = b"\0" * 16
        elif field == "float_data":
            tensor.float_data.extend([0.0] * 4)
        return built

    return make


def sparse(size: int) -> ModelProto:
    built = model([helper.make_node("Add", ["x", "c"], ["y"])])
    values = helper.make_tensor("c", FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", INT64, [1], [3])
    built.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [size]))
    return built


def computed(op: str, **more: Any) -> Make:
    """Build an op whose output size is given by a constant."""

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
        return one(op if op != "Upsample" else "Resize", constants, **attributes)

    return make


def folded(op: str) -> Make:
    """Build the same op on constants, reduced to one element: folding would allocate all of it."""

    def make(size: int) -> ModelProto:
        built = computed(op)(size)
        node = built.graph.node[0]
        for i, name in enumerate(node.input):
            if name == "x":
                node.input[i] = "k"
                built.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "k"))
        node.output[0] = "v"
        built.graph.node.append(helper.make_node("Cast", ["v"], ["f"], to=FLOAT))
        built.graph.node.append(helper.make_node("ReduceMax", ["f"], ["m"], keepdims=0))
        built.graph.node.append(helper.make_node("Add", ["x", "m"], ["y"]))
        return built

    return make


def attribute(op: str, name: str, listed: int = 0, shape: Sequence[Any] = (1, 4, 8, 8), **more: Any) -> Make:
    def make(size: int) -> ModelProto:
        node_attributes = {name: [size] * listed if listed else size, **more}
        return one(op, {"x": None}, shape, **node_attributes)

    return make


def negative(make: Make) -> Make:
    return lambda size: make(-size)


def endless_loop(size: int) -> ModelProto:
    """Build a loop of `size` iterations, which is loaded but not run."""
    inner = subgraph(
        "body",
        [helper.make_node("Identity", ["c"], ["o"]), helper.make_node("Relu", ["s"], ["r"])],
        [value("i", (), INT64), value("c", (), BOOL), value("s", (4,))],
        [value("o", (), BOOL), value("r", (4,))],
    )
    return model([helper.make_node("Loop", ["t", "", "x"], ["y"], body=inner)], None, None, {"t": np.array(size)})


def endless_stack(size: int) -> ModelProto:
    """Build a loop of `size` iterations that appends a row in each."""
    inner = subgraph(
        "body",
        [helper.make_node("Identity", ["c"], ["o"]), helper.make_node("Relu", ["x"], ["r"])],
        [value("i", (), INT64), value("c", (), BOOL)],
        [value("o", (), BOOL), value("r", (4,))],
    )
    return model([helper.make_node("Loop", ["t", ""], ["y"], body=inner)], None, None, {"t": np.array(size)})


# -- files -------------------------------------------------------------------------------------------------------------


def long_names(size: int) -> ModelProto:
    name = "n" * size
    nodes = [helper.make_node("Relu", ["x"], [name], name=name), helper.make_node("Exp", [name], ["y"])]
    return model(nodes, [value("x", (name, name + "m"))])


def long_strings(size: int) -> ModelProto:
    built = model([helper.make_node("Relu", ["x"], ["y"])])
    built.doc_string = built.producer_name = built.graph.name = "d" * size
    built.metadata_props.add(key="k" * size, value="v" * size)
    return built


def many_declarations(size: int) -> ModelProto:
    built = model([helper.make_node("Relu", ["x"], ["y"])])
    built.graph.value_info.extend(value(f"v{i}", (f"n{i}",)) for i in range(size))
    built.metadata_props.extend(onnx.StringStringEntryProto(key=f"k{i}", value="v") for i in range(size))
    return built


def many_opsets(size: int) -> ModelProto:
    built = model([helper.make_node("Relu", ["x"], ["y"])])
    built.opset_import.extend(helper.make_opsetid(f"d{i}", 1) for i in range(size))
    return built


def many_functions(size: int) -> ModelProto:
    opsets = [helper.make_opsetid("", OPSET)]
    nodes = [helper.make_node("Relu", ["a"], ["b"])]
    functions = [helper.make_function("local", f"f{i}", ["a"], ["b"], nodes, opsets) for i in range(size)]
    return model([helper.make_node("f0", ["x"], ["y"], domain="local")], functions=functions)


def many_calls(size: int) -> ModelProto:
    opsets = [helper.make_opsetid("", OPSET)]
    nodes = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Neg", ["b"], ["c"])]
    functions = [helper.make_function("local", "f", ["a"], ["c"], nodes, opsets)]
    return chain(size, lambda a, b, _: helper.make_node("f", [a], [b], domain="local"), functions=functions)


def many_empty_inputs(size: int) -> ModelProto:
    return model([helper.make_node("Relu", ["x"] + [""] * size, ["y"] + [""] * size)])


def same_names(size: int) -> ModelProto:
    """Build nodes with equal names."""
    return chain(size, lambda a, b, _: helper.make_node("Relu", [a], [b], name="n"))


def shadowed_names(size: int) -> ModelProto:
    """Build branches that all define a value of the same name."""
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
    """Build a tensor of strings, one of them long."""
    nodes = [
        helper.make_node("Constant", [], ["c"], value_strings=["a" * size, "b", "c", "d"]),
        helper.make_node("StringConcat", ["x", "c"], ["y"]),
    ]
    return model(nodes, [value("x", (4,), TensorProto.STRING)], [value("y", None, TensorProto.STRING)])
