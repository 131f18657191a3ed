"""Random control flow whose bodies may not fit the shapes of a run: weft must run what onnxruntime runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attack.drawn import Draw, packed
from attack.reduce import smaller_models
from attack.trial import attacked
from attack.verdict import Payload, Verdict
from onnx import parser

SECONDS = 60
SHARE = 12
DEEPEST = 3
SIZES = (0, 1, 2, 3, 4)


class _Writer:
    """Writes nodes in ONNX's text form; every value has a name of its own."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def pick(self, *choices: str) -> str:
        return choices[int(self._random.integers(len(choices)))]

    def nodes(self, x: str, result: str, depth: int) -> str:
        """Nodes that compute `result`, a vector, from the vector `x`, the condition `b` and the number `n`."""
        kinds = ("arithmetic", "arithmetic", "reshape", "gather", "if", "if", "loop", "scan")
        kind = self.pick(*kinds) if depth < DEEPEST else "arithmetic"
        return str(getattr(self, f"_{kind}")(x, result, depth))

    def _arithmetic(self, x: str, result: str, _: int) -> str:
        size, c, y = int(self._random.integers(1, 5)), self.name(), self.name()
        values = ", ".join(str(int(number)) for number in self._random.integers(-3, 4, size))
        operator = self.pick("Add", "Mul", "Sub", "Max")
        return f"{c} = Constant<value = float[{size}] {{{values}}}>() {y} = {operator}({x}, {c}) {result} = Tanh({y})"

    def _reshape(self, x: str, result: str, _: int) -> str:
        shape, flat, y = self.name(), self.name(), self.name()
        sizes = self.pick("[2, -1]", "[3, 1]", "[-1, 1, 2]", "[4]", "[2, 2]")
        flatten = f"{flat} = Constant<value_ints = [-1]>() {result} = Reshape({y}, {flat})"
        return f"{shape} = Constant<value_ints = {sizes}>() {y} = Reshape({x}, {shape}) {flatten}"

    def _gather(self, x: str, result: str, _: int) -> str:
        index = self.name()
        return f"{index} = Constant<value_ints = [{self.pick('0', '1', '-2', '3')}]>() {result} = Gather({x}, {index})"

    def _if(self, x: str, result: str, depth: int) -> str:
        condition, graphs = self.name(), []
        for branch in ("then_branch", "else_branch"):
            y = self.name()
            graphs.append(
                f"{branch} = {self.name()} () => (float[{self.name()}] {y}) {{ {self.nodes(x, y, depth + 1)} }}"
            )
        test = f"{condition} = {self.pick('Identity', 'Not')}(b)"
        return f"{test} {result} = If ({condition}) <{', '.join(graphs)}>"

    def _loop(self, x: str, result: str, depth: int) -> str:
        state, y, again, going, trips = (self.name() for _ in range(5))
        body = f"""{self.name()} (int64[1] {self.name()}, bool[1] {going}, float[{self.name()}] {state})
            => (bool[1] {again}, float[{self.name()}] {y}) {{
            {again} = Identity({going}) {self.nodes(state, y, depth + 1)} }}"""
        start = self.name()
        ones = f"{start} = Constant<value = bool[1] {{1}}>() {trips} = Identity(n)"
        return f"{ones} {result} = Loop <body = {body}> ({trips}, {start}, {x})"

    def _scan(self, x: str, result: str, depth: int) -> str:
        """States of a scan must keep their shapes, so that what may change them is an output."""
        before, after, element, row, rows, last, axis = (self.name() for _ in range(7))
        body = f"""{self.name()} (float[{self.name()}] {before}, float {element})
            => (float[{self.name()}] {after}, float[{self.name()}] {row}) {{
            {after} = Add({before}, {element}) {self.nodes(before, row, depth + 1)} }}"""
        scan = f"{last}, {rows} = Scan <num_scan_inputs = 1, body = {body}> ({x}, {x})"
        return f"{scan} {axis} = Constant<value_ints = [0]>() {result} = ReduceSum<keepdims = 0>({rows}, {axis})"


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    while True:
        size = int(SIZES[int(random.integers(len(SIZES)))])
        declared = str(size) if random.random() < 0.3 else "K"
        nodes = _Writer(random).nodes("x", "z", 0)
        text = f"agraph (float[{declared}] x, bool b, int64[1] n) => (float[R] y) {{ {nodes} y = Neg(z) }}"
        model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
        sizes = [size, *(int(SIZES[int(random.integers(len(SIZES)))]) for _ in range(2 if declared == "K" else 0))]
        yield {"name": nodes[:60], "model": packed(model), "runs": [_feeds(random, size) for size in sizes]}


def _feeds(random: np.random.Generator, size: int) -> dict[str, Draw]:
    return {
        "x": {"dtype": "float32", "shape": [size], "values": random.integers(-4, 5, size).tolist()},
        "b": {"dtype": "bool", "shape": [], "values": [bool(random.integers(2))]},
        "n": {"dtype": "int64", "shape": [1], "values": [int(random.integers(3))]},
    }


def attack(payload: Payload, device: str) -> Verdict:
    return attacked(payload, device)


def smaller(payload: Payload) -> Iterator[Payload]:
    return smaller_models(payload)
