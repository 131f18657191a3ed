"""`weft ops`: what models need and weft lacks, all of it at once."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import weft
from weft.cli import main
from weft.opset.origins import find_origin


def odd_model() -> onnx.ModelProto:
    """A model with unknown operators in its graph, in both branches of an If and in a function."""

    def branch() -> onnx.GraphProto:
        node = helper.make_node("NMSRotated", ["x"], ["q"], name="turned", domain="mmdeploy")
        return helper.make_graph([node], "branch", [], [helper.make_tensor_value_info("q", TensorProto.FLOAT, None)])

    inner = helper.make_node("Zorg", ["a"], ["b"], domain="acme")
    imports = [helper.make_opsetid(domain, 1) for domain in ("TRT", "local", "mmdeploy", "acme")]
    function = helper.make_function("local", "F", ["a"], ["b"], [inner], [helper.make_opsetid("acme", 1)])
    nodes = [
        helper.make_node("EfficientNMS_TRT", ["x"], ["a"], name="suppress", domain="TRT"),
        helper.make_node("F", ["a"], ["c"], domain="local"),
        helper.make_node("If", ["k"], ["d"], then_branch=branch(), else_branch=branch()),
        helper.make_node("Relu", ["c"], ["e"], slope=3.0),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
        helper.make_tensor_value_info("k", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("d", "e")]
    graph = helper.make_graph(nodes, "odd", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), *imports], functions=[function])


def plain_model(path: Path) -> Path:
    value = helper.make_tensor_value_info
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value("x", TensorProto.FLOAT, [2])], [value("y", TensorProto.FLOAT, [2])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_all_that_is_missing_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(odd_model(), tmp_path / "odd.onnx")
    plain = plain_model(tmp_path / "plain.onnx")
    assert main(["ops", "--missing", str(tmp_path / "odd.onnx"), str(plain), "--json"]) == 1
    odd, good = json.loads(capsys.readouterr().out)["models"]
    found = {(row["domain"], row["op"]): row for row in odd["missing"]}
    assert set(found) == {
        ("TRT", "EfficientNMS_TRT"),
        ("acme", "Zorg"),
        ("mmdeploy", "NMSRotated"),
        ("ai.onnx", "Relu"),
    }
    assert found["TRT", "EfficientNMS_TRT"]["first_node"] == "suppress"
    assert "TensorRT" in found["TRT", "EfficientNMS_TRT"]["defined_by"]
    assert found["mmdeploy", "NMSRotated"]["nodes"] == 2
    assert found["ai.onnx", "Relu"]["kind"] == "attribute"
    assert good["missing"] == []


def test_missing_operators_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(odd_model(), tmp_path / "odd.onnx")
    assert main(["ops", "--missing", str(tmp_path / "odd.onnx")]) == 1
    printed = capsys.readouterr().out
    assert "Zorg" in printed
    assert "a plugin of TensorRT" in printed


def test_nothing_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--missing", str(plain_model(tmp_path / "plain.onnx"))]) == 0
    assert "has all operators" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_told_beside_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = plain_model(tmp_path / "plain.onnx")
    assert main(["ops", "--missing", str(tmp_path / "none.onnx"), str(plain)]) == 1
    printed = capsys.readouterr().out
    assert "none.onnx" in printed
    assert "\n  hint: check the path\n" in printed
    assert "has all operators" in printed


def test_models_are_looked_through_for_what_is_missing_alone(tmp_path: Path) -> None:
    assert main(["ops", str(plain_model(tmp_path / "plain.onnx"))]) == 1


def test_loading_names_all_that_is_missing() -> None:
    with pytest.raises(weft.UnsupportedModelError, match=r"unknown operators (?s:.)*Zorg(?s:.)*NMSRotated") as caught:
        weft.load(odd_model())
    assert "weft ops --missing" in str(caught.value)


@pytest.mark.parametrize(
    ("domain", "op", "definer"),
    [
        ("com.microsoft.nchwc", "Conv", "optimiser"),
        ("com.ms.internal.nhwc", "Conv", "optimiser"),
        ("ai.onnx.contrib", "BpeTokenizer", "onnxruntime-extensions"),
        ("com.microsoft", "EPContext", "execution provider"),
        ("com.microsoft", "SomethingNew", "ContribOperators"),
        ("", "BatchedNMSDynamic_TRT", "TensorRT"),
        ("trt", "TRT_FP4DynamicQuantize", "ModelOpt"),
        ("", "MMCVModulatedDeformConv2d", "mmcv"),
        ("org.pytorch.aten", "ATen", "PyTorch"),
        ("pkg.onnxscript.torch_lib", "aten_scatter", "PyTorch"),
        ("org.openvinotoolkit", "FakeQuantize", "OpenVINO"),
        ("qti_aisw", "ElementWiseNeuron", "Qualcomm"),
        ("onnx.brevitas", "Quant", "Brevitas"),
        ("", "TensorListStack", "TensorFlow"),
        ("", "ImageScaler", "removed"),
    ],
)
def test_origins(domain: str, op: str, definer: str) -> None:
    origin = find_origin(domain, op)
    assert origin is not None
    assert definer in origin.definer
    assert origin.advice


@pytest.mark.parametrize("asked", ["relu", "Relu", "RELU", "ai.onnx.relu"])
def test_one_operator_is_told_of(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", asked, "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)["facts"]
    schema = onnx.defs.get_schema("Relu")
    assert facts["listed"][-1] == schema.since_version
    assert [each["name"] for each in facts["inputs"]] == [each.name for each in schema.inputs]
    assert len(facts["types"]["T"]) == len(schema.type_constraints[0].allowed_type_strs)
    module, line = next(iter(facts["places"].values())).split(":")
    source = Path(weft.__file__).parent.parent / module
    assert "Relu" in source.read_text(encoding="utf-8").splitlines()[int(line) - 1]


def test_every_operator_can_be_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--json"]) == 0
    names = [row["op"] for row in json.loads(capsys.readouterr().out)["ops"]]
    assert main(["ops", *names]) == 0
    text = capsys.readouterr().out
    assert all(f"{name} of " in text for name in names)


def test_patterns_list_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "reduce_m*", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["op"] for row in found["ops"]] == ["ReduceMax", "ReduceMean", "ReduceMin"]
    assert found["facts"] == []


@pytest.mark.parametrize(
    ("asked", "hint"), [("reul", "Relu may be meant"), ("m.onnx", "--missing m.onnx"), ("q8", "all")]
)
def test_an_operator_that_is_not_there(asked: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", asked]) == 1
    problem, told = capsys.readouterr().err.splitlines()
    assert repr(asked) in problem
    assert hint in told
