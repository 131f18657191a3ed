"""`weft bench --generate`, with the model that comes with weft."""

from __future__ import annotations

import json

import pytest

from weft.bench.generation import GenerationCase, make_prompts
from weft.bench.generation_engines import GENAI
from weft.cli import main
from weft.generation.generator import DEMO_MODEL

COMMAND = ["bench", "--generate", str(DEMO_MODEL), "--prompt-lengths", "8,20", "--batches", "1,3", "--new-tokens", "12"]
QUICK = ["--seconds", "0.1", "--device", "cpu"]


def test_figures_of_weft(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, *QUICK, "--against", "none", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    cases = [(each["prompt_length"], each["batch"]) for each in record["figures"]]
    assert cases == [(8, 1), (8, 3), (20, 1), (20, 3)]
    for each in record["figures"]:
        assert each["engine"] == "weft"
        assert each["rounds"] >= 3
        assert each["decode_rate"] > 0
        assert each["prefill_rate"] == pytest.approx(each["prompt_length"] * each["batch"] / each["first_seconds"])
        assert each["same_tokens"] == 1
    assert record["load_seconds"]["weft"] > 0


def test_against_onnxruntime_genai(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, *QUICK]) == 0
    text = capsys.readouterr().out
    if GENAI.missing is None:
        assert text.count("onnxruntime-genai") >= 4
    else:
        assert "not measured: onnxruntime-genai" in text
        assert "pip install onnxruntime-genai" in text
    for word in ("decode", "prefill", "first token"):
        assert word in text


def test_an_interpreter_without_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, *QUICK, "--peer-python", "/bin/false"]) == 0
    assert "not measured: onnxruntime-genai" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--against", "openvino"], "no such engine"),
        (["--batches", "0"], "--batches"),
        (["--prompt-lengths", "x"], "--prompt-lengths"),
    ],
)
def test_wrong_options(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, *arguments]) == 1
    assert problem in capsys.readouterr().err


def test_prompts_are_new_in_each_turn() -> None:
    case = GenerationCase(16, 2, 4)
    first, second = make_prompts(case, 100, 0), make_prompts(case, 100, 1)
    assert first == make_prompts(case, 100, 0)
    assert len({tuple(prompt) for prompt in first + second}) == 4
    assert all(len(prompt) == 16 for prompt in first)
    assert all(0 <= token < 100 for prompt in first + second for token in prompt)
