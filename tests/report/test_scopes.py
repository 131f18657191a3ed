"""Which nodes are folded together: by names, by metadata, by the names of weights, by repetition."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper
from report import view_models

from weft.frontend.outline import outline
from weft.frontend.source import copy_model, open_model
from weft.report.scopes import MANY, TOO_MANY, ScopeTree, build_scope_tree
from weft.runtime.model_files import is_defined


def tree(content: bytes) -> ScopeTree:
    return build_scope_tree(outline(copy_model(open_model(content)), is_defined).graph)


def labels(found: ScopeTree) -> list[str]:
    return [member.label for member in found.members if isinstance(member, ScopeTree)]


def numbers(found: ScopeTree) -> list[int]:
    return [n for m in found.members for n in (numbers(m) if isinstance(m, ScopeTree) else [m])]


def chain(*nodes: tuple[str, str, tuple[str, ...]], notes: dict[str, str] | None = None) -> bytes:
    """Nodes one after the other: operator, name, further inputs; notes by name are torch's scopes."""
    made = []
    last = "x"
    for number, (op, name, others) in enumerate(nodes):
        made.append(helper.make_node(op, [last, *others], [f"v{number}"], name=name))
        if notes and name in notes:
            made[-1].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=notes[name])
        last = f"v{number}"
    weights = tuple(view_models.weight(name, 16, 16) for _, _, others in nodes for name in others)
    return view_models.model(made, [last], weights)


def test_names_with_slashes() -> None:
    found = tree(view_models.blocks(12))
    assert labels(found) == [f"layer.{number}" for number in range(12)]
    first = found.members[0]
    assert isinstance(first, ScopeTree)
    assert labels(first) == ["attn", "mlp"]


def test_names_of_weights_are_enough() -> None:
    nodes = []
    for number in range(3):
        block = f"m.h.{number}"
        nodes += [
            ("MatMul", f"node_{number}a", (f"{block}.attn.q.weight",)),
            ("Relu", f"node_{number}b", ()),
            ("MatMul", f"node_{number}c", (f"{block}.attn.o.weight",)),
            ("MatMul", f"node_{number}d", (f"{block}.mlp.weight",)),
            ("Tanh", f"node_{number}e", ()),
        ]
    found = tree(chain(*nodes))
    assert labels(found) == ["h.0", "h.1", "h.2"]
    assert all(labels(block) == ["attn"] for block in found.members if isinstance(block, ScopeTree))


def test_torch_writes_scopes_down() -> None:
    notes = {
        "node_0": "['', 'encoder', 'encoder.layer.0', 'relu']",
        "node_1": "['', 'encoder', 'encoder.layer.0', 'tanh']",
        "node_2": "['', 'head', 'relu']",
        "node_3": "['', 'head', 'tanh']",
    }
    nodes = [(op, f"node_{number}", ()) for number, op in enumerate(("Relu", "Tanh", "Relu", "Tanh"))]
    assert labels(tree(chain(*nodes, notes=notes))) == ["encoder/layer.0", "head"]


def test_numbered_operators_are_no_scopes() -> None:
    nodes = [(op, f"{op}.{number}", ()) for number in range(6) for op in ("Relu", "Tanh", "Sigmoid")]
    assert labels(tree(chain(*nodes))) == []


def test_what_repeats_becomes_blocks() -> None:
    found = tree(view_models.blocks(30, named=False))
    assert len(found.members) <= MANY
    assert labels(found)[0] == "block 1"
    assert sorted(numbers(found)) == list(range(240))


def test_long_models_are_cut_into_parts() -> None:
    ops = [("Relu", "Tanh", "Sigmoid", "Abs", "Neg")[number * number % 7 % 5] for number in range(1500)]
    found = tree(chain(*((op, f"n{number}", ()) for number, op in enumerate(ops))))
    assert len(found.members) <= TOO_MANY
    assert sorted(numbers(found)) == list(range(1500))


def test_what_all_others_call_is_no_scope() -> None:
    """A name before half of the nodes, and a module that every layer calls."""
    nodes: list[tuple[str, str, tuple[str, ...]]] = []
    for number in range(8):
        nodes += [("Relu", f"/layer.{number}/Relu", ()), ("Tanh", f"/layer.{number}/Tanh", ())]
        nodes.append(("Abs", f"/shared/Abs_{number}", ()))
    assert labels(tree(chain(*nodes))) == [f"layer.{number}" for number in range(8)]


@pytest.mark.parametrize("note", ["[", "{}", "['a', 3]", "[" * 500, "x" * 5000, "['', '', '']"])
def test_notes_that_are_none(note: str) -> None:
    assert labels(tree(chain(("Relu", "a", ()), ("Tanh", "b", ()), notes={"a": note, "b": note}))) == []


def test_scopes_nest_only_so_deep() -> None:
    deep = "/".join("ab" * 20_000)
    assert len(numbers(tree(chain(("Relu", f"{deep}/1", ()), ("Tanh", f"{deep}/2", ()))))) == 2


def test_a_name_that_is_not_utf8_is_shown() -> None:
    proto = onnx.ModelProto.FromString(view_models.unknown())
    content = proto.SerializeToString().replace(b"strange", b"str\xff\xfege")
    assert outline(copy_model(open_model(content)), is_defined).graph.nodes[1].name == "str��ge"
