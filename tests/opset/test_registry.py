"""The schema of a definition does not depend on `from __future__ import annotations`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.opset import registry
from weft.opset.language import Tensor, elementwise

SIGNATURES = {
    "one": "(x: Tensor, *, beta: float = 1.0) -> Tensor",
    "attributes": "(x: Tensor, *, axes: tuple[int, ...] = (), mode: str = 'a', v: float | None = None) -> Tensor",
    "optional": "(x: Tensor, y: Tensor | None = None, z: Optional[Tensor] = None) -> tuple[Tensor, Tensor]",
    "static": "(x: Tensor, shape: Static, sizes: Sizes, k: Static | None = None) -> list[Tensor]",
    "variadic": "(*x: Tensor, values: np.ndarray = REQUIRED, output_count: int = 1) -> Any",
}


@pytest.mark.parametrize("signature", SIGNATURES)
def test_annotations_that_are_evaluated_say_the_same(signature: str) -> None:
    evaluated, postponed = (
        define(prefix, SIGNATURES[signature]) for prefix in ("", "from __future__ import annotations\n")
    )
    expected = list(postponed.attributes)
    for number, each in enumerate(expected):
        if each.annotation == "np.ndarray":
            expected[number] = registry.AttributeParameter(each.name, "np.ndarray[Any, Any]", each.default)
    assert evaluated.attributes == tuple(expected)
    assert [each.kind for each in evaluated.inputs] == [each.kind for each in postponed.inputs]
    assert [each.optional for each in evaluated.inputs] == [each.optional for each in postponed.inputs]
    assert (evaluated.outputs, evaluated.variadic, evaluated.counts_outputs) == (
        postponed.outputs,
        postponed.variadic,
        postponed.counts_outputs,
    )


def define(prefix: str, signature: str) -> registry.Definition:
    names: dict[str, Any] = {}
    text = "from typing import Any, Optional\nimport numpy as np\n"
    text += "from weft.opset.registry import REQUIRED, Sizes, Static\n"
    text += f"from weft.opset.language import Tensor\ndef f{signature}: ...\n"
    exec(compile(prefix + text, "theirs", "exec", dont_inherit=True), names)
    return registry._describe(names["f"], "F", "theirs", None, since=1)


def test_a_definition_of_someone_elses_takes_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(x, *, factor=1.0):  # type: ignore[no-untyped-def]
        return elementwise(lambda v: v * factor, x)

    scaled.__annotations__ = {"x": Tensor, "factor": float, "return": Tensor}
    monkeypatch.setitem(registry._registrations, ("theirs", "Scaled"), [])
    registry.op("Scaled", domain="theirs")(scaled)
    graph = weft.Graph()
    graph.output(weft.ops.domain("theirs").scaled(graph.input("x", ("n",), "float32"), factor=2.0), "y")
    np.testing.assert_array_equal(graph.compile(device="cpu", cache=False)(np.array([1, 2], np.float32)), [2, 4])
    with pytest.raises(weft.GraphError, match="must be float"):
        weft.ops.domain("theirs").scaled(graph.input("z", ("n",), "float32"), factor="two")
