"""Mutations of a model: each changes one thing that a real model could have otherwise.

All take a case (regions.py) and a generator, edit the case in place, and say whether they found something to change.
What is known of values (`case.draws`) may be stale after the first mutation: then the next one makes a model that
everybody refuses, which is a case as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from attack.drawn import Draw, as_initializer, described, draw_of, dtype_of
from attack.regions import Case, declaration
from onnx import AttributeProto, TensorProto, helper, numpy_helper

Random = np.random.Generator
FLOATS = ("float32", "float16", "float64", "bfloat16")
STRINGS: dict[str, tuple[str, ...]] = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "mode": ("constant", "edge", "reflect", "wrap", "nearest", "linear", "cubic", "DCR", "CRD", "bilinear", "zeros"),
    "coordinate_transformation_mode": (
        "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric", "tf_crop_and_resize",
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "direction": ("forward", "reverse", "bidirectional", "LEFT", "RIGHT"),
    "approximate": ("none", "tanh"),
    "padding_mode": ("zeros", "border", "reflection"),
    "reduction": ("none", "add", "mul", "max", "min"),
    "equation": ("ij,jk->ik", "bij,bjk->bik", "...ij,...jk->...ik", "ij->ji"),
}  # fmt: skip
INTEGERS: dict[str, tuple[int, ...]] = {
    "axis": (-4, -3, -2, -1, 0, 1, 2, 3), "keepdims": (0, 1), "ceil_mode": (0, 1), "transA": (0, 1), "transB": (0, 1),
    "count_include_pad": (0, 1), "group": (1, 2, 3, 4), "select_last_index": (0, 1), "exclusive": (0, 1),
    "reverse": (0, 1), "blocksize": (1, 2, 4), "largest": (0, 1), "sorted": (0, 1), "antialias": (0, 1),
    "linear_before_reset": (0, 1), "layout": (0, 1), "allowzero": (0, 1), "noop_with_empty_axes": (0, 1),
    "exclude_outside": (0, 1), "to": (1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 16), "stash_type": (1, 16), "saturate": (0, 1),
    "start": (-2, -1, 0, 1), "end": (-1, 1, 2), "storage_order": (0, 1), "batch_dims": (0, 1), "num_outputs": (1, 2, 3),
    "fmod": (0, 1), "upper": (0, 1), "num_groups": (1, 2, 4), "align_corners": (0, 1), "is_causal": (0, 1),
}  # fmt: skip
UNARY = ("Neg", "Abs", "Relu", "Tanh", "Sigmoid", "Erf", "Floor", "Exp", "Sqrt", "HardSwish", "Gelu", "Softplus", "Mish",
         "LeakyRelu", "Elu", "Round", "Sin", "Identity", "Ceil", "Sign", "Reciprocal", "Log", "Selu", "HardSigmoid",
         "Softsign", "Celu", "ThresholdedRelu", "Cos", "Atan", "Asinh", "Sinh")  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu")


def mutated(case: Case, random: Random, count: int) -> list[str]:
    """Mutate a case so many times; the names of the mutations."""
    names = list(MUTATIONS)
    weights = np.array([MUTATIONS[name][1] for name in names], np.float64)
    done = []
    for _ in range(8 * count):
        name = names[int(random.choice(len(names), p=weights / weights.sum()))]
        if MUTATIONS[name][0](case, random):
            done.append(name)
        if len(done) == count:
            break
    return done


def pick(random: Random, items: Sequence[Any]) -> Any:
    return items[int(random.integers(len(items)))]


def fresh(case: Case) -> str:
    """A name that no value has."""
    case.draws[f"m{len(case.draws)}"] = {"dtype": "float32", "shape": []}
    return list(case.draws)[-1]


def constant(case: Case, array: Any) -> str:
    name = fresh(case)
    case.draws[name] = described(np.asarray(array), len(case.draws))
    case.graph.initializer.append(as_initializer(name, case.draws[name]))
    return name


def put_nodes(case: Case, place: int, nodes: Sequence[onnx.NodeProto]) -> None:
    """Put nodes before the one at `place`."""
    rest = [onnx.NodeProto.FromString(node.SerializeToString()) for node in case.graph.node[place:]]
    del case.graph.node[place:]
    case.graph.node.extend([*nodes, *rest])


def change_attribute(case: Case, random: Random) -> bool:
    nodes = [node for node in case.graph.node if _attributes(case, node)]
    if not nodes:
        return False
    node = pick(random, nodes)
    schema = pick(random, _attributes(case, node))
    present = {attribute.name: attribute for attribute in node.attribute}
    if schema.name in present and not schema.required and random.random() < 0.25:
        node.attribute.remove(present[schema.name])
        return True
    made = _other_value(schema, present.get(schema.name), case, node, random)
    if made is None:
        return False
    if schema.name in present:
        node.attribute.remove(present[schema.name])
    node.attribute.append(helper.make_attribute(schema.name, made))
    return True


def _attributes(case: Case, node: onnx.NodeProto) -> list[Any]:
    opset = next((entry.version for entry in case.model.opset_import if entry.domain == node.domain), 0)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return []
    return [entry for entry in schema.attributes.values() if int(entry.type) in (1, 2, 3, 6, 7)] * (
        node.op_type != "Constant"
    )


def _other_value(schema: Any, old: AttributeProto | None, case: Case, node: onnx.NodeProto, random: Random) -> Any:
    match int(schema.type):
        case AttributeProto.INT:
            wild = (-1, 0, 1, 2, 3, 7, 2**31 - 1, -(2**63))
            return pick(random, INTEGERS.get(schema.name, wild) if random.random() < 0.9 else wild)
        case AttributeProto.FLOAT:
            return float(pick(random, (0.0, 1.0, -1.0, 0.5, 1e-5, 1e-3, 3.0, 0.1, 1e10, -0.25)))
        case AttributeProto.STRING:
            return pick(random, STRINGS.get(schema.name, ("", "x")))
        case AttributeProto.FLOATS:
            return [float(random.normal()) for _ in range(len(old.floats) if old else 2)]
    ints = list(old.ints) if old is not None else []
    if schema.name == "perm":
        rank = len(case.draws.get(node.input[0], {"shape": []})["shape"]) or len(ints)
        return [int(axis) for axis in random.permutation(rank)] or None
    if schema.name in ("pads", "strides", "dilations", "kernel_shape", "output_padding", "output_shape"):
        rank = len(case.draws.get(node.input[0], {"shape": [0, 0, 0, 0]})["shape"]) - 2
        count = len(ints) or max(rank, 1) * (2 if schema.name == "pads" else 1)
        low = 0 if schema.name in ("pads", "output_padding") else 1
        if ints and random.random() < 0.5:
            ints[int(random.integers(len(ints)))] = int(random.integers(low, 5))
            return ints
        return [int(random.integers(low, 4)) for _ in range(count)]
    if schema.name == "axes":
        return sorted({int(random.integers(-3, 4)) for _ in range(int(random.integers(1, 3)))})
    if ints:
        place = int(random.integers(len(ints)))
        ints[place] = int(pick(random, (ints[place] + 1, ints[place] - 1, 0, 1, -1, 2)))
        return ints
    return None


def change_size(case: Case, random: Random) -> bool:
    """One size is another one, at all places or at one."""
    everywhere = random.random() < 0.7
    held = {tensor.name: draw_of(tensor) for tensor in case.graph.initializer}
    shaped = {name: given for name, given in {**case.feeds, **held}.items() if given["shape"]}
    places = [(name, axis) for name, given in shaped.items() for axis in range(len(given["shape"]))]
    if not places:
        return False
    name, axis = pick(random, [place for place in places if place[0] in case.feeds] or places)
    old = shaped[name]["shape"][axis]
    new = int(pick(random, (1, old + 1, max(1, old - 1), 2 * old, int(random.integers(1, 20)), 3, 1)))
    if random.random() < 0.1:
        new = 0
    for other, given in shaped.items():
        shape = [new if size == old and (everywhere or (other, place) == (name, axis)) else size
                 for place, size in enumerate(given["shape"])]  # fmt: skip
        if shape == given["shape"]:
            continue
        made = given | {"shape": shape}
        if other in case.feeds:
            case.feeds[other] = made
            declared = next(entry for entry in case.graph.input if entry.name == other)
            declared.CopyFrom(declaration(other, made))
        elif everywhere:
            tensor = next(entry for entry in case.graph.initializer if entry.name == other)
            tensor.CopyFrom(_initializer(other, made))
        case.draws[other] = made
    forget_outputs(case)
    return True


def _initializer(name: str, given: Draw) -> TensorProto:
    if "values" in given and int(np.prod(given["shape"])) > 4096:
        given = {key: value for key, value in given.items() if key != "values"} | {"seed": 1, "mean": 0.0, "std": 1.0}
    return as_initializer(name, given)


def forget_outputs(case: Case) -> None:
    """Declare outputs by name alone."""
    for entry in case.graph.output:
        entry.CopyFrom(onnx.ValueInfoProto(name=entry.name))


def make_symbolic(case: Case, random: Random) -> bool:
    """Declared sizes become names: one for each size, one for each place, or none at all."""
    how = pick(random, ("by size", "by place", "some", "none", "rank"))
    for entry in case.graph.input:
        given = case.feeds[entry.name]
        shape: Any = [
            f"n{size}" if how == "by size" else f"{entry.name}_{axis}" if how in ("by place", "some") else None
            for axis, size in enumerate(given["shape"])
        ]
        if how == "some":
            shape = [name if random.random() < 0.5 else size for name, size in zip(shape, given["shape"])]
        entry.CopyFrom(declaration(entry.name, given, None if how == "rank" and random.random() < 0.5 else shape))
    forget_outputs(case)
    return True


def change_type(case: Case, random: Random) -> bool:
    """All floats of another type, or one value only, with casts around it or without one back."""
    if random.random() < 0.35:
        return _retype(case, str(pick(random, ("float16", "float64", "float64", "bfloat16"))))
    floats = [(place, at) for place, node in enumerate(case.graph.node) for at, name in enumerate(node.input)
              if case.draws.get(name, {"dtype": ""})["dtype"] in FLOATS]  # fmt: skip
    if not floats:
        return False
    place, at = pick(random, floats)
    node = case.graph.node[place]
    kind = pick(random, (10, 16, 11, 1, 6, 7, 9, 3, 2, 5, 12, 13))
    there, back = fresh(case), fresh(case)
    source = node.input[at]
    nodes = [helper.make_node("Cast", [source], [there], to=kind)]
    if random.random() < 0.85:
        original = helper.np_dtype_to_tensor_dtype(dtype_of(case.draws[source]["dtype"]))
        nodes.append(helper.make_node("Cast", [there], [back], to=original))
        case.draws[back] = case.draws[source]
        node.input[at] = back
    else:
        case.draws[there] = case.draws[source] | {"dtype": helper.tensor_dtype_to_np_dtype(kind).name}
        node.input[at] = there
    put_nodes(case, place, nodes)
    return True


def _retype(case: Case, dtype: str) -> bool:
    kind = helper.np_dtype_to_tensor_dtype(dtype_of(dtype))

    def changed(given: Draw) -> Draw:
        return given | {"dtype": dtype} if given["dtype"] in FLOATS else given

    for tensor in case.graph.initializer:
        given = draw_of(tensor)
        if given["dtype"] in FLOATS:
            tensor.CopyFrom(as_initializer(tensor.name, changed(given)))
    for node in case.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = kind
            elif attribute.type == AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
                if not attribute.t.doc_string:
                    array = numpy_helper.to_array(attribute.t).astype(dtype_of(dtype))
                    attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))
                else:
                    attribute.t.CopyFrom(as_initializer(attribute.t.name, changed(draw_of(attribute.t))))
    renamed = {}
    ahead = []
    for entry in case.graph.input:
        given = case.feeds[entry.name]
        if given["dtype"] in FLOATS and dtype == "bfloat16":  # numpy has none to feed: cast inside
            renamed[entry.name] = fresh(case)
            case.draws[renamed[entry.name]] = changed(given)
            ahead.append(helper.make_node("Cast", [entry.name], [renamed[entry.name]], to=kind))
        elif given["dtype"] in FLOATS:
            case.feeds[entry.name] = changed(given)
            entry.type.tensor_type.elem_type = kind
    for node in case.graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = renamed.get(name, name)
    put_nodes(case, 0, ahead)
    for name, given in case.draws.items():
        if name not in renamed:
            case.draws[name] = changed(given)
    if dtype == "bfloat16":
        for entry in case.graph.output:
            if case.draws.get(entry.name, {"dtype": ""})["dtype"] == dtype:
                made = fresh(case)
                case.graph.node.append(helper.make_node("Cast", [entry.name], [made], to=TensorProto.FLOAT))
                entry.name = made
    forget_outputs(case)
    return True


def rewire(case: Case, random: Random) -> bool:
    """A node reads another value: of the same shape and type, or of any."""
    places = [(place, at) for place, node in enumerate(case.graph.node) for at, name in enumerate(node.input) if name]
    place, at = pick(random, places)
    node = case.graph.node[place]
    old = case.draws.get(node.input[at])
    earlier = [*case.feeds, *(tensor.name for tensor in case.graph.initializer)]
    earlier += [name for other in case.graph.node[:place] for name in other.output if name]
    if old is not None and random.random() < 0.8:
        earlier = [name for name in earlier if name in case.draws and case.draws[name]["dtype"] == old["dtype"]
                   and case.draws[name]["shape"] == old["shape"]]  # fmt: skip
    earlier = [name for name in earlier if name != node.input[at]]
    if not earlier:
        return False
    node.input[at] = pick(random, earlier)
    forget_outputs(case)
    return True


def insert(case: Case, random: Random) -> bool:
    """Ops on an edge that keep its shape, or ops after an output that need not."""
    if random.random() < 0.35:
        return _append(case, random)
    edges = [(place, at) for place, node in enumerate(case.graph.node) for at, name in enumerate(node.input)
             if name in case.draws and case.draws[name]["dtype"] in FLOATS and case.draws[name]["shape"]]  # fmt: skip
    if not edges:
        return False
    place, at = pick(random, edges)
    node = case.graph.node[place]
    source = node.input[at]
    made: list[onnx.NodeProto] = []
    result = pick(random, INSERTIONS)(case, random, source, made)
    if result is None or not all(_exists(case, entry) for entry in made):
        return False
    case.draws[result] = case.draws[source]
    node.input[at] = result
    put_nodes(case, place, made)
    return True


def _exists(case: Case, node: onnx.NodeProto) -> bool:
    """Whether a node has this form in the model's opset."""
    opset = next((entry.version for entry in case.model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    given = {attribute.name for attribute in node.attribute}
    required = {name for name, entry in schema.attributes.items() if entry.required}
    return schema.min_input <= len(node.input) <= schema.max_input and required <= given <= set(schema.attributes)


Made = list[onnx.NodeProto]


def emit(case: Case, made: Made, op: str, inputs: Sequence[str], given: Draw | None = None, **attributes: Any) -> str:
    name = fresh(case)
    if given is not None:
        case.draws[name] = given
    made.append(helper.make_node(op, list(inputs), [name], **attributes))
    return name


def _unary(case: Case, random: Random, x: str, made: Made) -> str | None:
    return emit(case, made, pick(random, UNARY), [x])


def _binary(case: Case, random: Random, x: str, made: Made) -> str | None:
    """With a constant of a shape that broadcasts, or with a value of the same shape."""
    given = case.draws[x]
    others = [name for name in case.feeds if case.draws.get(name) == given and name != x]
    if others and random.random() < 0.5:
        other = pick(random, others)
    else:
        shape = [size if random.random() < 0.5 else 1 for size in given["shape"]]
        shape = shape[int(random.integers(len(shape) + 1)) :]
        if int(np.prod(shape)) > 4096:
            shape = []
        other = constant(case, random.normal(1, 0.5, shape).astype(dtype_of(given["dtype"])))
    pair = [x, other] if random.random() < 0.7 else [other, x]
    return emit(case, made, pick(random, BINARY), pair)


def _turn(case: Case, random: Random, x: str, made: Made) -> str | None:
    shape = case.draws[x]["shape"]
    order = [int(axis) for axis in random.permutation(len(shape))]
    there = emit(case, made, "Transpose", [x], perm=order)
    if random.random() < 0.7:
        there = emit(case, made, pick(random, UNARY), [there])
    return emit(case, made, "Transpose", [there], perm=[int(axis) for axis in np.argsort(order)])


def _reshape(case: Case, random: Random, x: str, made: Made) -> str | None:
    shape = case.draws[x]["shape"]
    size = int(np.prod(shape))
    factors = [number for number in range(1, min(size, 64) + 1) if size % number == 0] or [1]
    first = pick(random, factors)
    target = pick(random, ([-1], [first, -1], [-1, first], [1, first, -1], [0, -1] if len(shape) > 1 else [-1]))
    there = emit(case, made, "Reshape", [x, constant(case, np.int64(target))])
    if random.random() < 0.6:
        there = emit(case, made, pick(random, UNARY), [there])
    elif random.random() < 0.5:
        there = emit(case, made, "Softmax", [there], axis=-1)
    if random.random() < 0.4:
        back = emit(case, made, "Shape", [x])
    else:
        back = constant(case, np.int64(shape))
    return emit(case, made, "Reshape", [there, back])


def _pad(case: Case, random: Random, x: str, made: Made) -> str | None:
    """Pad, then slice the padding off again, or pad with negative numbers."""
    shape = case.draws[x]["shape"]
    rank = len(shape)
    before, after = ([int(random.integers(0, 3)) for _ in shape] for _ in range(2))
    mode = str(pick(random, ("constant", "constant", "edge", "reflect")))
    wide = emit(case, made, "Pad", [x, constant(case, np.int64([*before, *after]))], mode=mode)
    if random.random() < 0.5:
        wide = emit(case, made, pick(random, UNARY), [wide])
    if random.random() < 0.3:
        back = [-number for number in (*before, *after)]
        return emit(case, made, "Pad", [wide, constant(case, np.int64(back))])
    starts, ends = before, [start + size for start, size in zip(before, shape)]
    inputs = [wide, constant(case, np.int64(starts)), constant(case, np.int64(ends)), constant(case, np.arange(rank))]
    return emit(case, made, "Slice", inputs)


def _concat(case: Case, random: Random, x: str, made: Made) -> str | None:
    shape = case.draws[x]["shape"]
    axis = int(random.integers(len(shape)))
    other = emit(case, made, pick(random, UNARY), [x])
    both = emit(case, made, "Concat", [x, other] if random.random() < 0.5 else [other, x], axis=axis)
    if random.random() < 0.5:
        both = emit(case, made, pick(random, UNARY), [both])
    start = int(random.integers(0, shape[axis] + 1))
    numbers = [constant(case, np.int64([number])) for number in (start, start + shape[axis], axis)]
    return emit(case, made, "Slice", [both, *numbers])


def _flip(case: Case, random: Random, x: str, made: Made) -> str | None:
    axis = int(random.integers(len(case.draws[x]["shape"])))
    numbers = [constant(case, np.int64([number])) for number in (-1, -(2**60), axis, -1)]
    return emit(case, made, "Slice", [x, *numbers])


def _gather(case: Case, random: Random, x: str, made: Made) -> str | None:
    shape = case.draws[x]["shape"]
    axis = int(random.integers(len(shape)))
    if shape[axis] == 0 or shape[axis] > 4096:
        return None
    indices = random.integers(-shape[axis], shape[axis], shape[axis]).astype(pick(random, (np.int64, np.int32)))
    return emit(case, made, "Gather", [x, constant(case, indices)], axis=axis)


def _softmax(case: Case, random: Random, x: str, made: Made) -> str | None:
    axis = int(random.integers(-1, len(case.draws[x]["shape"])))
    return emit(case, made, pick(random, ("Softmax", "Softmax", "LogSoftmax")), [x], axis=axis)


def _centred(case: Case, random: Random, x: str, made: Made) -> str | None:
    """Minus or over a reduction of its own, as normalisations have it."""
    op = pick(random, ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2", "ReduceMin", "ReduceLogSumExp"))
    axis = int(random.integers(len(case.draws[x]["shape"])))
    opset = next((entry.version for entry in case.model.opset_import if not entry.domain), 13)
    late = opset >= 18 or (op == "ReduceSum" and opset >= 13)
    if late:
        mean = emit(case, made, op, [x, constant(case, np.int64([axis]))], keepdims=1)
    else:
        mean = emit(case, made, op, [x], axes=[axis], keepdims=1)
    return emit(case, made, pick(random, ("Sub", "Div", "Mul")), [x, mean])


def _where(case: Case, random: Random, x: str, made: Made) -> str | None:
    zero = constant(case, np.array(pick(random, (0.0, 0.5, -1.0)), dtype_of(case.draws[x]["dtype"])))
    condition = emit(case, made, pick(random, ("Less", "Greater")), [x, zero])
    return emit(case, made, "Where", [condition, x, emit(case, made, pick(random, UNARY), [x])])


def _cumsum(case: Case, random: Random, x: str, made: Made) -> str | None:
    axis = constant(case, np.int64(random.integers(len(case.draws[x]["shape"]))))
    return emit(case, made, "CumSum", [x, axis], reverse=int(random.integers(2)), exclusive=int(random.integers(2)))


def _clip(case: Case, random: Random, x: str, made: Made) -> str | None:
    low, high = (constant(case, np.array(end, dtype_of(case.draws[x]["dtype"]))) for end in (-0.5, 0.75))
    return emit(case, made, "Clip", pick(random, ([x, low, high], [x, "", high], [x, low])))


def _quantized(case: Case, random: Random, x: str, made: Made) -> str | None:
    scale = constant(case, np.float32(pick(random, (0.05, 0.01, 0.25))))
    zero = constant(case, np.array(pick(random, (0, 3)), pick(random, (np.int8, np.uint8))))
    return emit(case, made, "DequantizeLinear", [emit(case, made, "QuantizeLinear", [x, scale, zero]), scale, zero])


def _expand(case: Case, random: Random, x: str, made: Made) -> str | None:
    """A unit axis, grown and summed or sliced away."""
    shape = case.draws[x]["shape"]
    axis = int(random.integers(len(shape) + 1))
    unit = emit(case, made, "Reshape", [x, constant(case, np.int64([*shape[:axis], 1, *shape[axis:]]))])
    grown = emit(case, made, "Expand", [unit, constant(case, np.int64([*shape[:axis], 3, *shape[axis:]]))])
    if random.random() < 0.5:
        grown = emit(case, made, pick(random, UNARY), [grown])
    return emit(case, made, "Gather", [grown, constant(case, np.int64(pick(random, (0, 1, -1))))], axis=axis)


INSERTIONS: tuple[Callable[[Case, Random, str, Made], str | None], ...] = (
    _unary, _unary, _binary, _binary, _turn, _reshape, _pad, _concat, _flip, _gather, _softmax, _centred, _where, _cumsum,
    _clip, _quantized, _expand,
)  # fmt: skip


def _append(case: Case, random: Random) -> bool:
    """Something after an output that changes its shape."""
    outputs = [entry for entry in case.graph.output if case.draws.get(entry.name, {"dtype": ""})["dtype"] in FLOATS
               and case.draws[entry.name]["shape"]]  # fmt: skip
    if not outputs:
        return False
    entry = pick(random, outputs)
    x = entry.name
    shape = case.draws[x]["shape"]
    axis = int(random.integers(len(shape)))
    made: Made = []
    nodes: tuple[Callable[[], str], ...] = (
        lambda: emit(case, made, pick(random, ("ArgMax", "ArgMin")), [x], axis=axis, keepdims=int(random.integers(2))),
        lambda: emit(case, made, "Transpose", [x], perm=[int(at) for at in random.permutation(len(shape))]),
        lambda: emit(case, made, "Flatten", [x], axis=int(random.integers(len(shape) + 1))),
        lambda: emit(case, made, "MatMul", [x, constant(case, random.normal(size=(shape[-1], 5)).astype(dtype_of(case.draws[x]["dtype"])))]),
        lambda: emit(case, made, "Concat", [x, x, x], axis=axis),
        lambda: emit(case, made, "Slice", [x, *(constant(case, np.int64([number])) for number in (0, 2**62, axis, 2))]),
        lambda: emit(case, made, "Tile", [x, constant(case, np.int64([1] * (len(shape) - 1) + [2]))]),
        lambda: emit(case, made, "Unsqueeze", [x, constant(case, np.int64([axis]))]),
        lambda: emit(case, made, "Shape", [x]),
        lambda: emit(case, made, "Pad", [x, constant(case, np.int64(random.integers(-1, 3, 2 * len(shape))))]),
        lambda: emit(case, made, "TopK", [x, constant(case, np.int64([min(2, shape[axis])]))], axis=axis),
    )  # fmt: skip
    name = pick(random, nodes)()
    if made[-1].op_type == "TopK":
        made[-1].output.append(fresh(case))
    if not _exists(case, made[-1]):
        return False
    case.graph.node.extend(made)
    if random.random() < 0.5:
        entry.CopyFrom(onnx.ValueInfoProto(name=name))
    else:
        case.graph.output.append(onnx.ValueInfoProto(name=name))
    return True


def remove(case: Case, random: Random) -> bool:
    """A node that keeps its shape is left out."""
    fitting = [place for place, node in enumerate(case.graph.node) if node.input and node.output and len(case.graph.node) > 1
               and case.draws.get(node.input[0], {"shape": None})["shape"] == case.draws.get(node.output[0], {"shape": ()})["shape"]]  # fmt: skip
    if not fitting:
        return False
    place = pick(random, fitting)
    node = case.graph.node[place]
    node.CopyFrom(helper.make_node("Identity", [node.input[0]], [node.output[0]]))
    return True


def duplicate(case: Case, random: Random) -> bool:
    """A node twice: one reader takes the second, or both are outputs."""
    place = int(random.integers(len(case.graph.node)))
    node = case.graph.node[place]
    twin = onnx.NodeProto.FromString(node.SerializeToString())
    names = {}
    for at, name in enumerate(node.output):
        if name:
            names[name] = fresh(case)
            case.draws[names[name]] = case.draws.get(name, {"dtype": "float32", "shape": []})
            twin.output[at] = names[name]
    for other in case.graph.node[place + 1 :]:
        if random.random() < 0.5:
            for at, name in enumerate(other.input):
                other.input[at] = names.get(name, name)
    put_nodes(case, place + 1, [twin])
    case.graph.output.append(onnx.ValueInfoProto(name=next(iter(names.values()))))
    return True


def drop_input(case: Case, random: Random) -> bool:
    places = [(place, at) for place, node in enumerate(case.graph.node) for at in range(1, len(node.input))
              if node.input[at] and (_optional(case, node, at) or random.random() < 0.03)]  # fmt: skip
    if not places:
        return False
    place, at = pick(random, places)
    node = case.graph.node[place]
    if at == len(node.input) - 1:
        del node.input[at:]
    else:
        node.input[at] = ""
    return True


def _optional(case: Case, node: onnx.NodeProto, at: int) -> bool:
    opset = next((entry.version for entry in case.model.opset_import if entry.domain == node.domain), 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return False
    return at >= len(schema.inputs) or schema.inputs[at].option != onnx.defs.OpSchema.FormalParameterOption.Single


def add_output(case: Case, random: Random) -> bool:
    declared = {entry.name for entry in case.graph.output}
    names = [name for node in case.graph.node for name in node.output if name and name not in declared]
    if not names:
        return False
    case.graph.output.append(onnx.ValueInfoProto(name=pick(random, names)))
    return True


def branch(case: Case, random: Random) -> bool:
    """An If around a node; its other branch computes something of the same type."""
    places = _single_output(case)
    if not places:
        return False
    place = pick(random, places)
    node = case.graph.node[place]
    output = node.output[0]
    given = case.draws[output]
    inner, other = fresh(case), fresh(case)
    body = onnx.NodeProto.FromString(node.SerializeToString())
    body.output[0] = inner
    alike = [name for name in _before(case, place) if case.draws.get(name, {}).get("dtype") == given["dtype"]
             and case.draws[name]["shape"] == given["shape"]]  # fmt: skip
    if alike and random.random() < 0.6:
        otherwise = [helper.make_node(pick(random, ("Identity", "Neg", "Abs")), [pick(random, alike)], [other])]
        extra = []
    else:
        zeros = fresh(case)
        extra = [numpy_helper.from_array(np.int64(given["shape"]), zeros)]
        filling = numpy_helper.from_array(
            np.ones(1, dtype_of(given["dtype"])) if given["dtype"] != "str" else np.array(["a"], object)
        )
        otherwise = [helper.make_node("ConstantOfShape", [zeros], [other], value=filling)]
    then = helper.make_graph([body], "then", [], [_typed(inner, given)])
    orelse = helper.make_graph(otherwise, "else", [], [_typed(other, given)], extra)
    if random.random() < 0.5:
        then, orelse = orelse, then
    condition, ahead = _condition(case, random, place)
    put_nodes(case, place, ahead)
    case.graph.node[place + len(ahead)].CopyFrom(
        helper.make_node("If", [condition], [output], then_branch=then, else_branch=orelse)
    )
    return True


def _condition(case: Case, random: Random, place: int) -> tuple[str, list[onnx.NodeProto]]:
    """A constant, an input, or something computed."""
    match int(random.integers(3)):
        case 0:
            return constant(case, np.array(random.random() < 0.5)), []
        case 1:
            name = fresh(case)
            given = {"dtype": "bool", "shape": [], "values": [bool(random.random() < 0.5)]}
            case.draws[name] = case.feeds[name] = given
            case.graph.input.append(declaration(name, given))
            return name, []
    floats = [name for name in _before(case, place) if case.draws.get(name, {}).get("dtype") == "float32"]
    if not floats:
        return constant(case, np.array(True)), []
    made: Made = []
    total = emit(case, made, "ReduceMax", [pick(random, floats)], keepdims=0)
    return emit(case, made, "Greater", [total, constant(case, np.float32(random.normal()))]), made


def loop(case: Case, random: Random) -> bool:
    """A Loop around a node: its result is carried where the shape allows, and collected."""
    places = _single_output(case)
    if not places:
        return False
    place = pick(random, places)
    node = case.graph.node[place]
    output, given = node.output[0], case.draws[node.output[0]]
    fitting = [at for at, name in enumerate(node.input) if case.draws.get(name) is not None and
               case.draws[name]["dtype"] == given["dtype"] and case.draws[name]["shape"] == given["shape"]]  # fmt: skip
    body = onnx.NodeProto.FromString(node.SerializeToString())
    number, going, carried, result, on, collected = (fresh(case) for _ in range(6))
    body.output[0] = result
    trips = int(pick(random, (1, 2, 3, 3)))
    inputs = [
        helper.make_tensor_value_info(number, TensorProto.INT64, []),
        helper.make_tensor_value_info(going, TensorProto.BOOL, []),
    ]
    nodes = [body, helper.make_node("Identity", [going], [on])]
    outputs = [helper.make_tensor_value_info(on, TensorProto.BOOL, [])]
    count = constant(case, np.int64(trips))
    if random.random() < 0.3:
        name = fresh(case)
        case.draws[name] = case.feeds[name] = {"dtype": "int64", "shape": [], "values": [trips]}
        case.graph.input.append(declaration(name, case.feeds[name]))
        count = name
    collecting = random.random() < 0.4
    if fitting:
        at = pick(random, fitting)
        start = node.input[at]
        body.input[at] = carried
        inputs.append(_typed(carried, given))
        outputs.append(_typed(result, given))
        if collecting:
            nodes.append(helper.make_node("Identity", [result], [collected]))
            outputs.append(_typed(collected, given))
        graph = helper.make_graph(nodes, "body", inputs, outputs)
        stack = [fresh(case)] if collecting else []
        made = [helper.make_node("Loop", [count, "", start], [output, *stack], body=graph)]
        for name in stack:
            case.graph.output.append(onnx.ValueInfoProto(name=name))
    else:
        outputs.append(_typed(result, given))
        graph = helper.make_graph(nodes, "body", inputs, outputs)
        stacked = fresh(case)
        made = [helper.make_node("Loop", [count, ""], [stacked], body=graph)]
        last = constant(case, np.int64(-1))
        made.append(helper.make_node("Gather", [stacked, last], [output], axis=0))
    rest = [onnx.NodeProto.FromString(other.SerializeToString()) for other in case.graph.node[place + 1 :]]
    del case.graph.node[place:]
    case.graph.node.extend([*made, *rest])
    return True


def scan(case: Case, random: Random) -> bool:
    """A Scan over an axis of a value, inserted before a reader of it: a running sum, and each slice changed."""
    edges = [(place, at) for place, node in enumerate(case.graph.node) for at, name in enumerate(node.input)
             if name in case.draws and case.draws[name]["dtype"] in FLOATS and case.draws[name]["shape"]]  # fmt: skip
    if not edges:
        return False
    place, at = pick(random, edges)
    node = case.graph.node[place]
    x = node.input[at]
    given = case.draws[x]
    axis = int(random.integers(len(given["shape"])))
    part = given | {"shape": [*given["shape"][:axis], *given["shape"][axis + 1 :]]}
    state, piece, total, changed = (fresh(case) for _ in range(4))
    start, final, stacked = constant(case, np.zeros([1], dtype_of(given["dtype"]))), fresh(case), fresh(case)
    made: Made = []
    begun = emit(case, made, "Expand", [start, constant(case, np.int64(part["shape"]))])
    body = helper.make_graph(
        [helper.make_node("Add", [state, piece], [total]), helper.make_node(pick(random, UNARY), [total], [changed])],
        "body", [_typed(state, part), _typed(piece, part)], [_typed(total, part), _typed(changed, part)],
    )  # fmt: skip
    made.append(
        helper.make_node(
            "Scan",
            [begun, x],
            [final, stacked],
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[axis],
            scan_output_axes=[axis],
            scan_input_directions=[int(random.integers(2))],
        )  # fmt: skip
    )
    case.draws[stacked] = given
    node.input[at] = stacked
    put_nodes(case, place, made)
    case.graph.output.append(onnx.ValueInfoProto(name=final))
    return True


def into_function(case: Case, random: Random) -> bool:
    """Some neighbouring nodes become a function of the model."""
    start = int(random.integers(len(case.graph.node)))
    nodes = [
        onnx.NodeProto.FromString(node.SerializeToString())
        for node in case.graph.node[start : start + int(random.integers(1, 5))]
    ]
    made = [name for node in nodes for name in node.output if name]
    from attack.regions import reads

    inputs = list(dict.fromkeys(name for node in nodes for name in reads(node) if name not in made))
    later = {name for node in case.graph.node[start + len(nodes) :] for name in reads(node)}
    later |= {entry.name for entry in case.graph.output}
    outputs = [name for name in made if name in later]
    if not outputs or not inputs or any(node.domain == "attacked" for node in nodes):
        return False
    name = f"F{len(case.model.functions)}"
    opsets = [entry for entry in case.model.opset_import if entry.domain != "attacked"]
    case.model.functions.append(helper.make_function("attacked", name, inputs, outputs, nodes, opsets))
    if all(entry.domain != "attacked" for entry in case.model.opset_import):
        case.model.opset_import.append(helper.make_opsetid("attacked", 1))
    rest = [onnx.NodeProto.FromString(node.SerializeToString()) for node in case.graph.node[start + len(nodes) :]]
    del case.graph.node[start:]
    case.graph.node.extend([helper.make_node(name, inputs, outputs, domain="attacked"), *rest])
    return True


def change_opset(case: Case, random: Random) -> bool:
    for entry in case.model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = int(pick(random, (9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)))
    return True


def change_constant(case: Case, random: Random) -> bool:
    """A small constant is another one, or an input of the model."""
    small = [tensor for tensor in case.graph.initializer if not tensor.doc_string]
    if not small:
        return False
    tensor = pick(random, small)
    array = np.array(numpy_helper.to_array(tensor))
    if array.dtype.kind in "OUS":
        return False
    if random.random() < 0.4:
        name = tensor.name
        case.feeds[name] = case.draws[name] = described(array, 7)
        case.graph.initializer.remove(tensor)
        case.graph.input.append(declaration(name, case.feeds[name]))
        return True
    if array.size:
        at = int(random.integers(array.size))
        flat = array.ravel().copy()
        old = flat[at]
        choices = (0, 1, 2, -1, old + 1, old - 1, -old) if array.dtype.kind != "b" else (not old,)
        try:
            flat[at] = pick(random, choices)
        except OverflowError:
            return False
        tensor.CopyFrom(numpy_helper.from_array(flat.reshape(array.shape), tensor.name))
    forget_outputs(case)
    return True


def _single_output(case: Case) -> list[int]:
    return [place for place, node in enumerate(case.graph.node)
            if len(node.output) == 1 and node.output[0] in case.draws and node.input and node.op_type not in ("If", "Loop", "Scan")
            and case.draws[node.output[0]]["dtype"] != "str"]  # fmt: skip


def _before(case: Case, place: int) -> list[str]:
    return [*case.feeds, *(name for node in case.graph.node[:place] for name in node.output if name)]


def _typed(name: str, given: Draw) -> onnx.ValueInfoProto:
    """A declared type without a shape."""
    return declaration(name, given, None)


MUTATIONS: dict[str, tuple[Callable[[Case, Random], bool], float]] = {
    "attribute": (change_attribute, 4),
    "size": (change_size, 3),
    "symbolic": (make_symbolic, 2.5),
    "type": (change_type, 2.5),
    "rewire": (rewire, 2),
    "insert": (insert, 6),
    "remove": (remove, 1),
    "duplicate": (duplicate, 1),
    "drop input": (drop_input, 0.7),
    "output": (add_output, 1),
    "if": (branch, 1),
    "loop": (loop, 1),
    "scan": (scan, 0.7),
    "function": (into_function, 0.7),
    "opset": (change_opset, 0.7),
    "constant": (change_constant, 1.5),
}
