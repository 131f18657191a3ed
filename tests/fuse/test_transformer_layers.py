"""A transformer layer has seven launches, however its products are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from kernels.threads.emulation import with_products
from peers import onnxruntime_run

import weft
from weft.fuse import fuse
from weft.ir.groups import AttentionGroup, HeavyGroup, ReshapeGroup, RowGroup
from weft.ir.target import Float32Products

WIDE, HEADS, SIZE = 24, 3, 8
RNG = np.random.default_rng(31)


class Layer:
    """The nodes and constants of a layer, with x [batch, length, WIDE]."""

    def __init__(self, flat: bool) -> None:
        self.flat = flat  # rows are one dimension in products
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Any] = {
            "rows": np.array([-1, WIDE]),
            "scale": np.float32(SIZE**-0.5),
            "heads": np.array([0, 0, HEADS, SIZE]),
            "joined": np.array([0, 0, WIDE]),
            "half": np.float32(0.5),
            "one": np.float32(1),
            "root": np.float32(2**0.5),
        }

    def add(self, kind: str, inputs: list[str], result: str, **attributes: Any) -> str:
        self.nodes.append(node(kind, inputs, [result], **attributes))
        return result

    def constant(self, name: str, *shape: int) -> str:
        self.constants[name] = (RNG.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
        return name

    def product(self, x: str, name: str, deep: int, wide: int) -> str:
        weights, bias = self.constant(f"{name}_w", deep, wide), self.constant(f"{name}_b", wide)
        if not self.flat:
            return self.add("Add", [self.add("MatMul", [x, weights], f"{name}_p"), bias], f"{name}_y")
        self.constants |= {f"{name}_flat": np.array([-1, deep])}
        flat = self.add("Reshape", [x, f"{name}_flat"], f"{name}_f")
        product = self.add("Gemm", [flat, weights, bias], f"{name}_p")
        shape = self.add("Concat", ["leading", f"{name}_n"], f"{name}_s", axis=0)
        self.constants[f"{name}_n"] = np.array([wide])
        return self.add("Reshape", [product, shape], f"{name}_y")

    def norm(self, x: str, name: str) -> str:
        scale, bias = self.constant(f"{name}_w", WIDE), self.constant(f"{name}_b", WIDE)
        return self.add("LayerNormalization", [x, scale, bias], f"{name}_y")

    def gelu(self, x: str) -> str:
        erf = self.add("Erf", [self.add("Div", [x, "root"], "g1")], "g2")
        return self.add("Mul", [self.add("Mul", [x, "half"], "g3"), self.add("Add", [erf, "one"], "g4")], "g5")

    def build(self, sizes: tuple[Any, Any]) -> onnx.ModelProto:
        self.add("Shape", ["x"], "leading", start=0, end=2)
        heads = {}
        for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            split = self.add("Reshape", [self.product("x", name, WIDE, WIDE), "heads"], f"{name}_h")
            heads[name] = self.add("Transpose", [split], f"{name}_t", perm=order)
        score = self.add("Mul", [self.add("MatMul", [heads["q"], heads["k"]], "qk"), "scale"], "score")
        weighed = self.add("MatMul", [self.add("Softmax", [score], "p", axis=-1), heads["v"]], "o")
        joined = self.add("Reshape", [self.add("Transpose", [weighed], "t", perm=[0, 2, 1, 3]), "joined"], "j")
        attended = self.add("Add", [self.product(joined, "out", WIDE, WIDE), "x"], "residual")
        first = self.norm(attended, "norm1")
        hidden = self.gelu(self.product(first, "up", WIDE, 4 * WIDE))
        self.norm(self.add("Add", [self.product(hidden, "down", 4 * WIDE, WIDE), first], "all"), "norm2")
        constants = [tensor(name, array) for name, array in self.constants.items()]
        inputs = [value("x", [*sizes, WIDE])]
        return model(self.nodes, inputs, [value("norm2_y", None)], constants, opsets={"": 17})


@pytest.mark.parametrize("sizes", [(2, 5), ("batch", "length")])
@pytest.mark.parametrize("flat", [False, True])
def test_seven_launches(flat: bool, sizes: tuple[Any, Any]) -> None:
    built = Layer(flat).build(sizes)
    loaded = weft.load(built, device="reference")
    x = RNG.standard_normal((2, 5, WIDE)).astype(np.float32)
    (expected,) = onnxruntime_run(built, {"x": x})
    np.testing.assert_allclose(loaded.run({"x": x})["norm2_y"], expected, rtol=1e-4, atol=1e-5)
    fused = fuse(loaded.program, with_products(Float32Products.PARTS))
    kinds = [type(group) for group in fused.groups if not isinstance(group, ReshapeGroup)]
    product, rows = HeavyGroup, RowGroup
    assert kinds == [product, AttentionGroup, product, rows, product, product, rows]
