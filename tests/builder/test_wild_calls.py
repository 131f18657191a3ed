"""Whatever functions are called with, they give tensors or an error of weft's own, and the graph stays whole."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import onnx
import pytest

import weft
from weft import ops
from weft.builder.naming import names_of
from weft.opset.registry import definitions

CALLS = 3  # of each function

Random = np.random.Generator


class Stranger:
    """Something of someone else's that can be neither shown nor made an array."""

    def __repr__(self) -> str:
        raise RuntimeError("mine")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("mine")


def start() -> tuple[weft.Graph, list[Any]]:
    graph = weft.Graph()
    tensors: list[Any] = [
        graph.input("x", (2, 3)),
        graph.input("image", ("n", 3, 8, 8)),
        graph.input("ids", ("n", None), "int64"),
        graph.input("flag", (), "bool"),
        graph.input("text", (4,), "string"),
        graph.input("half", (1, "t", 5), "float16"),
        ops.sequence_construct(graph.input("y", (2,))),
        graph.parameter("w", np.ones((3, 4), np.float32)),
    ]
    return graph, tensors


def wild(random: Random, tensors: list[Any]) -> Any:
    others: list[Any] = [
        None, 0, 1, -1, 2, 0.5, True, "text", "", b"bytes", [], [1], [0, 1], [[1.0, 2.0]], (2, 2), {}, object(), 10**30,
        float("nan"), np.float32(1), np.zeros((0,)), np.ones((2, 3)), np.array(["a"]), [None], Stranger(), 1j, ...,
        tensors[1].shape[0], [tensors[1].shape[0], 3], lambda *_: tensors[0], slice(1), "float32", [tensors[0], 1],
    ]  # fmt: skip
    if random.random() < 0.6:
        return tensors[int(random.integers(len(tensors)))]
    return others[int(random.integers(len(others)))]


def call(random: Random, function: Any, tensors: list[Any]) -> Any:
    """A call with anything for the parameters that it must have, and for some of the others."""
    arguments: list[Any] = []
    keywords: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        is_needed = parameter.default is inspect.Parameter.empty
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            arguments += [wild(random, tensors) for _ in range(int(random.integers(0, 4)))]
        elif is_needed or random.random() < 0.2:
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY or len(arguments) != len(keywords) + len(arguments):
                keywords[parameter.name] = wild(random, tensors)
            else:
                arguments.append(wild(random, tensors))
    return function(*arguments, **keywords)


@pytest.mark.parametrize("domain", sorted({definition.domain for definition in definitions()}))
@pytest.mark.parametrize("seed", [0])
def test_wild_calls(domain: str, seed: int) -> None:
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    space = ops.domain(domain) if domain else ops
    foreign: list[str] = []
    for name in sorted(names_of(domain)):
        for _ in range(CALLS):
            graph, tensors = start()
            with graph:
                try:
                    call(random, getattr(space, name), tensors)
                except weft.WeftError as error:
                    str(error)
                except Exception as error:
                    foreign.append(f"{name}: {type(error).__name__}: {error}")
            graph.output(tensors[0] + 1, "z")
            written = graph.to_onnx()
            names = [output for node in written.graph.node for output in node.output]
            assert len(names) == len(set(names)), name
    assert foreign == []


def test_wild_operators_and_indices() -> None:
    random = np.random.default_rng(1)
    foreign: list[str] = []
    for _ in range(400):
        graph, tensors = start()
        x = tensors[int(random.integers(len(tensors)))]
        other = wild(random, tensors)
        for kind in ("add", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "lt", "eq", "getitem", "radd"):
            try:
                getattr(x, f"__{kind}__")(other)
            except weft.WeftError as error:
                str(error)
            except Exception as error:
                foreign.append(f"{kind}: {type(error).__name__}: {error}")
        for method in ("astype", "reshape", "transpose", "squeeze", "sum", "max"):
            try:
                getattr(x, method)(other)
            except weft.WeftError as error:
                str(error)
            except Exception as error:
                foreign.append(f"{method}: {type(error).__name__}: {error}")
        graph.output(tensors[0] + 1, "z")
        onnx.checker.check_model(graph.to_onnx())
    assert sorted(set(foreign)) == []
