"""`weft ops`: operators that models need and weft lacks, and facts about operators."""

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
        node = helper.make_node("NMSRotated", ["x"], ["q"], name="rotated", domain="mmdeploy")
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


def test_missing_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(odd_model(), tmp_path / "odd.onnx")
    plain = plain_model(tmp_path / "plain.onnx")
    assert main(["ops", "--missing", str(tmp_path / "odd.onnx"), str(plain), "--json"]) == 1
    odd, good = json.loads(capsys.readouterr().out)["models"]
    rows = {(row["domain"], row["op"]): row for row in odd["missing"]}
    assert set(rows) == {
        ("TRT", "EfficientNMS_TRT"),
        ("acme", "Zorg"),
        ("mmdeploy", "NMSRotated"),
        ("ai.onnx", "Relu"),
    }
    assert rows["TRT", "EfficientNMS_TRT"]["first_node"] == "suppress"
    assert "TensorRT" in rows["TRT", "EfficientNMS_TRT"]["defined_by"]
    assert rows["mmdeploy", "NMSRotated"]["nodes"] == 2
    assert rows["ai.onnx", "Relu"]["kind"] == "attribute"
    assert good["missing"] == []


def test_missing_operators_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(odd_model(), tmp_path / "odd.onnx")
    assert main(["ops", "--missing", str(tmp_path / "odd.onnx")]) == 1
    printed = capsys.readouterr().out
    assert "Zorg" in printed
    assert "a plugin of TensorRT" in printed


def test_no_missing_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--missing", str(plain_model(tmp_path / "plain.onnx"))]) == 0
    assert "supports the operators of all" in capsys.readouterr().out


def test_unreadable_file_among_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = plain_model(tmp_path / "plain.onnx")
    assert main(["ops", "--missing", str(tmp_path / "none.onnx"), str(plain)]) == 1
    printed = capsys.readouterr().out
    assert "none.onnx" in printed
    assert "\n  hint: check the path\n" in printed
    assert "supports the operators of all" in printed


def test_models_need_the_missing_option(tmp_path: Path) -> None:
    assert main(["ops", str(plain_model(tmp_path / "plain.onnx"))]) == 1


def test_loading_names_all_missing_operators() -> None:
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


@pytest.mark.parametrize("name", ["relu", "Relu", "RELU", "ai.onnx.relu"])
def test_one_operator(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", name, "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)["facts"]
    schema = onnx.defs.get_schema("Relu")
    assert facts["listed"][-1] == schema.since_version
    assert [each["name"] for each in facts["inputs"]] == [each.name for each in schema.inputs]
    assert len(facts["types"]["T"]) == len(schema.type_constraints[0].allowed_type_strs)
    module, line = next(iter(facts["places"].values())).split(":")
    source = Path(weft.__file__).parent.parent / module
    assert "Relu" in source.read_text(encoding="utf-8").splitlines()[int(line) - 1]


def test_every_operator_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--json"]) == 0
    names = [row["op"] for row in json.loads(capsys.readouterr().out)["ops"]]
    assert main(["ops", *names]) == 0
    text = capsys.readouterr().out
    assert all(f"{name} of " in text for name in names)


def test_patterns_list_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "reduce_m*", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [row["op"] for row in record["ops"]] == ["ReduceMax", "ReduceMean", "ReduceMin"]
    assert record["facts"] == []


@pytest.mark.parametrize(
    ("name", "suggestion"), [("reul", "did you mean Relu?"), ("m.onnx", "--missing m.onnx"), ("q8", "all")]
)
def test_unknown_operator(name: str, suggestion: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", name]) == 1
    problem, hint = capsys.readouterr().err.splitlines()
    assert repr(name) in problem
    assert suggestion in hint
