"""Small files that demand much: chains, trees, fans, diamonds, nesting, huge numbers.

Each structure is made by a function of one number, how large it is. What must hold for any of them: a model is loaded
and runs as onnxruntime runs it, or is refused with a WeftError, in bounded seconds and bounded memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from attack import rival
from attack.large_numbers import (
    HUGE,
    aliases,
    attribute,
    claimed,
    computed,
    convolution,
    declared,
    declared_channels,
    einsum,
    einsum_operands,
    flattened_symbols,
    folded,
    joined_symbols,
    long_names,
    long_strings,
    many_calls,
    many_declarations,
    many_dims,
    many_empty_inputs,
    many_functions,
    many_opsets,
    negative,
    no_output_channels,
    padded_convolution,
    pool,
    reshapes,
    same_names,
    shadowed_names,
    shape_extremes,
    shape_pairs,
    shape_polynomials,
    shape_squares,
    shape_sums,
    sparse,
    strided,
    text,
    transposed_convolution,
)
from attack.structures import (
    Make,
    casts,
    concats,
    constant_nodes,
    convolutions,
    deep_type,
    diamonds,
    fan_in_out,
    fan_out,
    fan_sum_products,
    functions_deep,
    functions_doubling,
    functions_empty,
    functions_in_branches,
    gathers,
    label_encoder,
    long_attribute,
    long_constant,
    loops_after_loops,
    many_attributes,
    many_constants,
    many_inputs,
    many_parts,
    many_parts_joined,
    many_symbols,
    model,
    nested_ifs,
    nested_loops,
    nested_scans,
    pads,
    products,
    recurrences,
    reductions,
    same,
    same_input,
    sequences,
    slices,
    softmaxes,
    sums_and_reductions,
    transposes,
    tree,
    tree_ensemble,
    unary,
    unsorted,
    useless,
    value,
    with_constant,
    with_input,
)
from attack.verdict import Payload, Verdict, refused, right, wrong
from google.protobuf.message import DecodeError, EncodeError
from onnx import helper

import weft

SHARE = 32  # the next one computes 2³¹ cosines, which takes a minute
SECONDS = 90

LONG: dict[str, Make] = {
    "relus": unary("Relu"),
    "exponentials": unary("Exp", "Neg"),
    "added constant": with_constant("Add", "Mul"),
    "added constants": many_constants,
    "added input": with_input("Add"),
    "diamonds": diamonds("Add"),
    "diamonds of products": diamonds("Mul"),
    "matrix products": products,
    "transposes": transposes,
    "slices": slices,
    "pads": pads,
    "gathers": gathers,
    "growing concats": concats,
    "reductions": reductions,
    "casts": casts,
    "unsorted": unsorted,
    "useless": useless,
    "same": same,
    "constants": constant_nodes,
    "fan out": fan_out,
    "fan of a sum": fan_in_out("Sum"),
    "fan of a maximum": fan_in_out("Max"),
    "fan of a concat": fan_in_out("Concat", axis=0),
    "fan of products": fan_sum_products,
    "inputs": many_inputs,
    "inputs of as many sizes": many_symbols,
    "sum of one value": same_input("Sum"),
    "mean of one value": same_input("Mean"),
    "concat of one value": same_input("Concat", axis=0),
    "tree": tree("Add"),
    "loops": loops_after_loops,
    "sequence": sequences,
    "functions": many_functions,
    "calls": many_calls,
    "same names": same_names,
    "aliases": aliases,
    "strides": strided,
    "reshapes": reshapes,
    "doubled sizes": shape_sums,
}
HEAVY: dict[str, Make] = {
    "softmaxes": softmaxes,
    "means": sums_and_reductions,
    "convolutions": convolutions,
    "recurrences": recurrences,
    "parts": many_parts,
    "parts joined": many_parts_joined,
    "shadowed names": shadowed_names,
}
LISTS: dict[str, Make] = {
    "attributes": many_attributes,
    "long attribute": long_attribute,
    "long constant": long_constant,
    "labels": label_encoder,
    "decision tree": tree_ensemble,
    "declarations": many_declarations,
    "opsets": many_opsets,
    "empty inputs": many_empty_inputs,
    "long names": long_names,
    "long strings": long_strings,
    "text": text,
}
DEEP: dict[str, Make] = {
    "branches": nested_ifs,
    "loops of a constant": nested_loops(True),
    "loops": nested_loops(False),
    "growing loops": nested_loops(False, True),
    "scans": nested_scans,
    "doubling functions": functions_doubling,
    "functions": functions_deep,
    "functions in branches": functions_in_branches,
    "empty functions": functions_empty,
    "sequence type": deep_type("sequence"),
    "optional type": deep_type("optional"),
    "squares of sizes": shape_squares,
    "polynomials": shape_polynomials,
    "minima of quotients": shape_extremes("Div", "Min"),
    "maxima of sums": shape_extremes("Add", "Div", "Max"),
    "remainders": shape_extremes("Div", "Add", "Mod"),
    "pairs of sizes": shape_pairs,
    "flattened": flattened_symbols,
    "joined": joined_symbols,
    "dims": many_dims,
    "letters": einsum,
    "operands": einsum_operands,
}
NUMBERS: dict[str, Make] = {
    "declared": declared,
    "declared image": declared_channels,
    "padded convolution": padded_convolution,
    "dilations": convolution(dilations=2),
    "strides": convolution(strides=2),
    "pads": convolution(pads=4),
    "group": lambda size: model(
        [helper.make_node("Conv", ["x", "w"], ["y"], group=size)],
        [value("x", (1, 4, 8, 8))],
        None,
        {"w": np.zeros((4, 4, 3, 3), np.float32)},
    ),
    "transposed strides": transposed_convolution(strides=2),
    "transposed dilations": transposed_convolution(dilations=2),
    "output padding": transposed_convolution(output_padding=2),
    "output shape": transposed_convolution(output_shape=2),
    "pooled kernel": pool("MaxPool", kernel_shape=2),
    "pooled pads": pool("AveragePool", pads=4),
    "pooled strides": pool("MaxPool", strides=2),
    "pooled dilations": pool("MaxPool", dilations=2),
    "claimed": claimed(""),
    "claimed bytes": claimed("raw_data"),
    "claimed floats": claimed("float_data"),
    "sparse": sparse,
    **{
        f"{op} of {size}": computed(op)
        for size, op in enumerate(("Expand", "Tile", "Pad", "Resize", "Reshape", "TopK"))
    },
    **{
        f"folded {op}": folded(op)
        for op in (
            "ConstantOfShape",
            "Expand",
            "Tile",
            "Range",
            "OneHot",
            "Pad",
            "Resize",
            "Trilu",
            "Slice",
            "HannWindow",
            "BlackmanWindow",
        )
    },
    "random": computed("RandomNormal"),
    "blocks": attribute("SpaceToDepth", "blocksize"),
    "depth": attribute("DepthToSpace", "blocksize"),
    "axis": attribute("Softmax", "axis"),
    "flatten": attribute("Flatten", "axis"),
    "permutation": attribute("Transpose", "perm", 4),
    "negative": negative(attribute("Concat", "axis")),
    "split": attribute("Split", "num_outputs", axis=0),
    "neighbours": attribute("LRN", "size"),
    "power": attribute("LpNormalization", "p"),
}
TREE: dict[str, tuple[dict[str, Make], Sequence[int]]] = {
    "long": (LONG, (1, 2, 65, 300, 1500)),
    "heavy": (HEAVY, (1, 3, 20, 60)),
    "list": (LISTS, (0, 1, 1000, 50_000)),
    "deep": (DEEP, (1, 2, 5, 9, 20, 31)),
    "number": (NUMBERS, (0, 1, 2**16, 10**7, *HUGE)),
    "zero": ({"no output channels": no_output_channels}, (0, 1, 4)),
}
COMPARED_BYTES = 1 << 24  # a result larger than this is not compared


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    """Yield every structure at every size in random order, endlessly."""
    every = [(group, kind, size) for group, (kinds, sizes) in TREE.items() for kind in kinds for size in sizes]
    for number in random.permutation(len(every)):
        group, kind, size = every[number]
        yield {"name": f"{group}: {kind} × {size}", "group": group, "kind": kind, "size": size}
    while True:
        group, kind, size = every[int(random.integers(len(every)))]
        size = int(size * random.uniform(0.5, 2))
        yield {"name": f"{group}: {kind} × {size}", "group": group, "kind": kind, "size": size}


def attack(payload: Payload, device: str) -> Verdict:
    """Load the structure, run it once, and compare with onnxruntime if that accepts it."""
    try:
        model = TREE[payload["group"]][0][payload["kind"]](payload["size"]).SerializeToString()
    except (ValueError, OverflowError, IndexError, DecodeError, EncodeError):
        return refused("no file can say this")
    loaded = weft.load(model, device=device, cache=False)
    feeds = {spec.name: _data(spec) for spec in loaded.inputs}
    if sum(array.nbytes for array in feeds.values() if isinstance(array, np.ndarray)) > COMPARED_BYTES:
        return refused("loads; its inputs are too large to run it here")
    if payload["kind"] in ("scans",) and payload["size"] > 12:
        return right()  # it runs 2**size times
    results = loaded.run(feeds)
    try:
        expected = rival.run(model, feeds, list(results))
    except rival.RivalError as error:  # what it refuses, or dies of, it cannot judge
        return refused(f"onnxruntime takes no such model: {str(error)[:80]}")
    for name, theirs in zip(results, expected):
        ours = results[name]
        if isinstance(theirs, np.ndarray) and theirs.nbytes <= COMPARED_BYTES and theirs.dtype.kind in "fiub":
            if ours.shape != theirs.shape:
                return wrong(f"{name}: {ours.shape} where onnxruntime gives {theirs.shape}")
            if not np.allclose(ours, theirs, rtol=1e-3, atol=1e-4, equal_nan=True):
                return wrong(f"{name} differs from onnxruntime's")
    return right()


def smaller(payload: Payload) -> Iterator[Payload]:
    """Yield the same structure at smaller sizes."""
    for size in (payload["size"] // 2, payload["size"] - 1):
        if size >= 0:
            name = f"{payload['group']}: {payload['kind']} × {size}"
            yield {**payload, "name": name, "size": size}


def _data(spec: Any) -> Any:
    if spec.element is None or spec.shape is None:
        return [] if "sequence" in str(spec.type) else None
    shape = [size if isinstance(size, int) else 2 for size in spec.shape]
    if math.prod(shape) > COMPARED_BYTES:
        return np.broadcast_to(np.float32(0), shape) if len(shape) < 32 and max(shape) < 2**62 else np.empty(0)
    kind = np.dtype(spec.element.numpy).kind
    if kind == "O":
        return np.full(shape, "a", object)
    if kind == "f":
        return np.random.default_rng(0).standard_normal(shape).astype(spec.element.numpy)
    return np.ones(shape, spec.element.numpy)
