"""Mutations of attributes: other values that an op's schema allows, wild ones now and then, or none."""

from __future__ import annotations

from typing import Any

import onnx
from attack.edits import Random, pick
from attack.regions import Case
from onnx import AttributeProto, helper

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
    "saturate": (0, 1), "exclude_outside": (0, 1),
    "to": (1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 16), "stash_type": (1, 16),
    "start": (-2, -1, 0, 1), "end": (-1, 1, 2), "storage_order": (0, 1), "batch_dims": (0, 1), "num_outputs": (1, 2, 3),
    "fmod": (0, 1), "upper": (0, 1), "num_groups": (1, 2, 4), "align_corners": (0, 1), "is_causal": (0, 1),
}  # fmt: skip


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
    new_value = _other_value(schema, present.get(schema.name), case, node, random)
    if new_value is None:
        return False
    if schema.name in present:
        node.attribute.remove(present[schema.name])
    node.attribute.append(helper.make_attribute(schema.name, new_value))
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
            usual = INTEGERS.get(schema.name, wild)
            return pick(random, usual if random.random() < 0.9 or set(usual) <= {0, 1} else wild)
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
