"""Build a random model: values with shapes for one choice of the symbolic sizes, nodes, constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from attack.drawn import Draw, as_initializer, describe_array, dtype_of
from attack.edits import pick
from attack.regions import Case
from onnx import TensorProto, helper

Random = np.random.Generator


Shape = list[int]


OPSET = 21


MOST_ELEMENTS = 60_000


INTS = ("int64", "int32", "int8", "uint8")


class Composer:
    """A model under construction."""

    def __init__(self, random: Random, opset: int = OPSET) -> None:
        self.random, self.opset = random, opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self.draws: dict[str, Draw] = {}
        self.feeds: dict[str, Draw] = {}
        self.declared: dict[str, list[int | str]] = {}
        self.values: list[str] = []

    def pick(self, items: Sequence[Any]) -> Any:
        return pick(self.random, items)

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def shape(self, name: str) -> Shape:
        return list(self.draws[name]["shape"])

    def input(self, dtype: str, dims: Sequence[tuple[int, str | None]], **range_: float) -> str:
        name = f"in{len(self.feeds)}"
        seed = int(self.random.integers(1 << 30))
        drawn = {"dtype": dtype, "shape": [size for size, _ in dims], "seed": seed, "mean": 0.0, "std": 1.0, **range_}
        self.feeds[name] = self.draws[name] = drawn
        self.declared[name] = [symbol or size for size, symbol in dims]
        self.values.append(name)
        return name

    def constant(self, array: Any) -> str:
        name = f"k{len(self.constants)}"
        self.draws[name] = describe_array(np.asarray(array), int(self.random.integers(1 << 30)))
        self.constants.append(as_initializer(name, self.draws[name]))
        return name

    def weights(self, *shape: int, std: float | None = None, dtype: str = "float32") -> str:
        deviation = std if std is not None else float(np.prod(shape[1:]) or 1) ** -0.5
        return self.constant(self.random.normal(0, deviation, shape).astype(dtype_of(dtype)))

    def ints(self, *numbers: int) -> str:
        return self.constant(np.int64(numbers))

    def emit(
        self, op: str, inputs: Sequence[str], shape: Sequence[int], dtype: str = "float32", **attributes: Any
    ) -> str:
        return self.emit_many(op, inputs, [(shape, dtype)], **attributes)[0]

    def emit_many(
        self, op: str, inputs: Sequence[str], results: Sequence[tuple[Sequence[int], str]], **attributes: Any
    ) -> list[str]:
        names = [f"v{len(self.draws) + number}" for number in range(len(results))]
        for name, (shape, dtype) in zip(names, results, strict=True):
            seed = {"seed": 0, "mean": 0.0, "std": 1.0}
            self.draws[name] = {"dtype": dtype, "shape": [int(size) for size in shape], **seed}
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        self.values += names
        return names

    def some(self, rank: int | None = None, dtype: str = "float32", least: int = 1) -> str | None:
        """Pick a value of this rank and type, preferably a recent one."""
        fitting = [name for name in self.values if self.draws[name]["dtype"] == dtype
                   and (rank is None or len(self.shape(name)) == rank) and len(self.shape(name)) >= least
                   and np.prod(self.shape(name)) <= MOST_ELEMENTS]  # fmt: skip
        if not fitting:
            return None
        if self.chance(0.6):
            fitting = fitting[-3:]
        return str(self.pick(fitting))

    def case(self, name: str) -> Case:
        read = {used for node in self.nodes for used in node.input}
        outputs = [value for value in self.values if value not in read and value not in self.feeds] or self.values[-1:]
        model = onnx.ModelProto(ir_version=10)
        model.opset_import.append(helper.make_opsetid("", self.opset))
        model.graph.name = "composed"
        model.graph.node.extend(self.nodes)
        model.graph.initializer.extend(self.constants)
        for entry, shape in self.declared.items():
            kind = helper.np_dtype_to_tensor_dtype(dtype_of(self.feeds[entry]["dtype"]))
            model.graph.input.append(helper.make_tensor_value_info(entry, kind, shape))
        model.graph.output.extend(onnx.ValueInfoProto(name=entry) for entry in outputs)
        return Case(name, model, dict(self.feeds), dict(self.draws))
