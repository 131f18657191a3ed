"""Every node that is computed belongs to some piece of work, also where products of one input become one."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper
from report import view_models

from weft.frontend.source import copy_model, open_model
from weft.report.compiled_facts import collect_facts
from weft.runtime.options import LoadOptions


def done_together(content: bytes) -> list[set[str]]:
    facts = collect_facts(copy_model(open_model(content)), LoadOptions(device="cpu", cache=False), {})
    assert facts.problem is None
    return [set(work.nodes) for work in facts.works]


def test_products_of_one_input() -> None:
    names = [f"{kind}_{number}" for number in range(3) for kind in ("product", "act")]
    nodes = []
    for number in range(3):
        nodes += [
            helper.make_node("MatMul", ["x", f"w{number}"], [f"p{number}"], name=f"product_{number}"),
            helper.make_node("Relu", [f"p{number}"], [f"y{number}"], name=f"act_{number}"),
        ]
    weights = tuple(view_models.weight(f"w{number}", 16, 16) for number in range(3))
    content = view_models.model(nodes, ["y0", "y1", "y2"], weights, inputs=(view_models.tensor("x", [2, 16]),))
    works = done_together(content)
    assert set(names) <= set().union(*works)
    assert any({"product_0", "product_1", "product_2"} <= work for work in works)


def test_heads_of_attention() -> None:
    nodes = []
    weights = [numpy_helper.from_array(np.array([0, 0, 4, 4], np.int64), "heads")]
    for number in range(3):
        nodes += [
            helper.make_node("MatMul", ["x", f"w{number}"], [f"p{number}"], name=f"product_{number}"),
            helper.make_node("Add", [f"p{number}", f"b{number}"], [f"a{number}"], name=f"bias_{number}"),
            helper.make_node("Reshape", [f"a{number}", "heads"], [f"y{number}"], name=f"split_{number}"),
            helper.make_node("Exp", [f"y{number}"], [f"z{number}"], name=f"after_{number}"),
        ]
        weights += [view_models.weight(f"w{number}", 16, 16), view_models.weight(f"b{number}", 16)]
    inputs = (view_models.tensor("x", [2, 8, 16]),)
    works = done_together(view_models.model(nodes, ["z0", "z1", "z2"], tuple(weights), inputs=inputs))
    computed = {f"{kind}_{number}" for kind in ("product", "bias", "after") for number in range(3)}
    assert computed <= set().union(*works)
