"""Grouping of nodes into scopes by names, metadata, weights and repetition."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper
from report import view_models

from weft.frontend.outline import read_outline
from weft.frontend.source import copy_model, open_model
from weft.report.scopes import MANY, TOO_MANY, ScopeTree, build_scope_tree
from weft.runtime.model_files import is_defined


def tree(content: bytes) -> ScopeTree:
    return build_scope_tree(read_outline(copy_model(open_model(content)), is_defined).graph)


def labels(scope: ScopeTree) -> list[str]:
    return [member.label for member in scope.members if isinstance(member, ScopeTree)]


def numbers(scope: ScopeTree) -> list[int]:
    return [n for m in scope.members for n in (numbers(m) if isinstance(m, ScopeTree) else [m])]


def chain(*nodes: tuple[str, str, tuple[str, ...]], notes: dict[str, str] | None = None) -> bytes:
    """Return a model of nodes in a row: (operator, name, further inputs); notes by name are torch's scopes."""
    protos = []
    last = "x"
    for number, (op, name, others) in enumerate(nodes):
        protos.append(helper.make_node(op, [last, *others], [f"v{number}"], name=name))
        if notes and name in notes:
            protos[-1].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=notes[name])
        last = f"v{number}"
    weights = tuple(view_models.weight(name, 16, 16) for _, _, others in nodes for name in others)
    return view_models.model(protos, [last], weights)


def test_names_with_slashes() -> None:
    scope = tree(view_models.blocks(12))
    assert labels(scope) == [f"layer.{number}" for number in range(12)]
    first = scope.members[0]
    assert isinstance(first, ScopeTree)
    assert labels(first) == ["attn", "mlp"]


def test_scopes_in_names_of_weights() -> None:
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
    scope = tree(chain(*nodes))
    assert labels(scope) == ["h.0", "h.1", "h.2"]
    assert all(labels(block) == ["attn"] for block in scope.members if isinstance(block, ScopeTree))


def test_scopes_in_metadata() -> None:
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


def test_repeated_nodes_become_blocks() -> None:
    scope = tree(view_models.blocks(30, named=False))
    assert len(scope.members) <= MANY
    assert labels(scope)[0] == "block 1"
    assert sorted(numbers(scope)) == list(range(240))


def test_long_models_are_cut_into_parts() -> None:
    ops = [("Relu", "Tanh", "Sigmoid", "Abs", "Neg")[number * number % 7 % 5] for number in range(1500)]
    scope = tree(chain(*((op, f"n{number}", ()) for number, op in enumerate(ops))))
    assert len(scope.members) <= TOO_MANY
    assert sorted(numbers(scope)) == list(range(1500))


def test_a_module_that_all_others_call_is_no_scope() -> None:
    """Every layer calls the module `shared`."""
    nodes: list[tuple[str, str, tuple[str, ...]]] = []
    for number in range(8):
        nodes += [("Relu", f"/layer.{number}/Relu", ()), ("Tanh", f"/layer.{number}/Tanh", ())]
        nodes.append(("Abs", f"/shared/Abs_{number}", ()))
    assert labels(tree(chain(*nodes))) == [f"layer.{number}" for number in range(8)]


@pytest.mark.parametrize("note", ["[", "{}", "['a', 3]", "[" * 500, "x" * 5000, "['', '', '']"])
def test_invalid_metadata_is_ignored(note: str) -> None:
    assert labels(tree(chain(("Relu", "a", ()), ("Tanh", "b", ()), notes={"a": note, "b": note}))) == []


def test_scopes_have_a_maximum_depth() -> None:
    deep = "/".join("ab" * 20_000)
    assert len(numbers(tree(chain(("Relu", f"{deep}/1", ()), ("Tanh", f"{deep}/2", ()))))) == 2


def test_a_name_that_is_not_utf8_is_shown() -> None:
    proto = onnx.ModelProto.FromString(view_models.unknown())
    content = proto.SerializeToString().replace(b"strange", b"str\xff\xfege")
    assert read_outline(copy_model(open_model(content)), is_defined).graph.nodes[1].name == "str��ge"
