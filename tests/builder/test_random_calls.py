"""Call functions with random arguments: they return tensors or raise weft's errors, and the graph stays valid."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import onnx
import pytest

import weft
from weft import ops
from weft.builder.naming import function_names
from weft.opset.registry import definitions

CALLS = 3  # of each function

Random = np.random.Generator


class ForeignObject:
    """An object whose `__repr__` and `__array__` fail."""

    def __repr__(self) -> str:
        raise RuntimeError("mine")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("mine")


def make_graph() -> tuple[weft.Graph, list[Any]]:
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


def random_value(random: Random, tensors: list[Any]) -> Any:
    others: list[Any] = [
        None, 0, 1, -1, 2, 0.5, True, "text", "", b"bytes", [], [1], [0, 1], [[1.0, 2.0]], (2, 2), {}, object(), 10**30,
        float("nan"), np.float32(1), np.zeros((0,)), np.ones((2, 3)), np.array(["a"]), [None], ForeignObject(), 1j, ...,
        tensors[1].shape[0], [tensors[1].shape[0], 3], lambda *_: tensors[0], slice(1), "float32", [tensors[0], 1],
    ]  # fmt: skip
    if random.random() < 0.6:
        return tensors[int(random.integers(len(tensors)))]
    return others[int(random.integers(len(others)))]


def call(random: Random, function: Any, tensors: list[Any]) -> Any:
    """Call a function with random values for its required parameters and some optional ones."""
    arguments: list[Any] = []
    keywords: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        is_required = parameter.default is inspect.Parameter.empty
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            arguments += [random_value(random, tensors) for _ in range(int(random.integers(0, 4)))]
        elif is_required or random.random() < 0.2:
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY or len(arguments) != len(keywords) + len(arguments):
                keywords[parameter.name] = random_value(random, tensors)
            else:
                arguments.append(random_value(random, tensors))
    return function(*arguments, **keywords)


@pytest.mark.parametrize("domain", sorted({definition.domain for definition in definitions()}))
@pytest.mark.parametrize("seed", [0])
def test_random_calls(domain: str, seed: int) -> None:
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    space = ops.domain(domain) if domain else ops
    failures: list[str] = []
    for name in sorted(function_names(domain)):
        for _ in range(CALLS):
            graph, tensors = make_graph()
            with graph:
                try:
                    call(random, getattr(space, name), tensors)
                except weft.WeftError as error:
                    str(error)
                except Exception as error:
                    failures.append(f"{name}: {type(error).__name__}: {error}")
            graph.output(tensors[0] + 1, "z")
            written = graph.to_onnx()
            names = [output for node in written.graph.node for output in node.output]
            assert len(names) == len(set(names)), name
    assert failures == []


def test_random_operators_and_indices() -> None:
    random = np.random.default_rng(1)
    failures: list[str] = []
    for _ in range(400):
        graph, tensors = make_graph()
        x = tensors[int(random.integers(len(tensors)))]
        other = random_value(random, tensors)
        for kind in ("add", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "lt", "eq", "getitem", "radd"):
            try:
                getattr(x, f"__{kind}__")(other)
            except weft.WeftError as error:
                str(error)
            except Exception as error:
                failures.append(f"{kind}: {type(error).__name__}: {error}")
        for method in ("astype", "reshape", "transpose", "squeeze", "sum", "max"):
            try:
                getattr(x, method)(other)
            except weft.WeftError as error:
                str(error)
            except Exception as error:
                failures.append(f"{method}: {type(error).__name__}: {error}")
        graph.output(tensors[0] + 1, "z")
        onnx.checker.check_model(graph.to_onnx())
    assert sorted(set(failures)) == []
