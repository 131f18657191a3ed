"""`weft.compat.onnxruntime_genai` against what onnxruntime-genai returns for the same program: recorded.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generation.small_decoders import SHORT_LENGTH, VARIANTS, VOCABULARY, write_decoder

import weft
from weft import compat
from weft.compat import onnxruntime_genai as og
from weft.compat.installation import GENAI_API_LEVEL
from weft.generation.generator import DEMO_MODEL

pytest.importorskip("tokenizers")
HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"
PROMPT = "The functions of"


def run_python(*arguments: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **variables}
    process = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def model() -> og.Model:
    return og.Model(str(DEMO_MODEL))


@pytest.fixture(scope="module")
def tokenizer(model: og.Model) -> og.Tokenizer:
    return og.Tokenizer(model)


def start(model: og.Model, **options: Any) -> og.Generator:
    params = og.GeneratorParams(model)
    params.set_search_options(**{"max_length": 40, **options})
    return og.Generator(model, params)


def finish(generator: og.Generator, index: int = 0) -> list[int]:
    while not generator.is_done():
        generator.generate_next_token()
    tokens: list[int] = generator.get_sequence(index).tolist()
    return tokens


def test_program_returns_what_the_original_returns() -> None:
    actual = json.loads(run_python("-m", "weft.compat", str(HERE / "program.py"), str(DEMO_MODEL)))
    expected = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))
    assert len(expected["loop"][0]) == 200
    assert actual.keys() == expected.keys()
    for name, content in expected.items():
        assert actual[name] == content, name


def test_install_by_environment_variable_and_by_call() -> None:
    program = "import onnxruntime_genai as og; print(og.__version__, og.Model.__module__)"
    hook = f"import sys; exec(open({str(SOURCE / 'weft_compat.pth')!r}).read()); {program}"
    for names in ("onnxruntime_genai", "onnxruntime, onnxruntime_genai"):
        printed = run_python("-c", hook, WEFT_COMPAT=names)
        assert printed.split() == [GENAI_API_LEVEL, "weft.compat.onnxruntime_genai.model"]
    compat.install("onnxruntime_genai")
    try:
        module = import_module("onnxruntime_genai")
        assert module.Model is og.Model
        assert compat.is_installed("onnxruntime_genai")
        assert not compat.is_installed()
    finally:
        compat.uninstall()
    with pytest.raises(ValueError, match="weft replaces"):
        compat.install("numpy")


def test_sampling_has_seeds(model: og.Model, tokenizer: og.Tokenizer) -> None:
    texts = []
    for seed in (3, 3, 4):
        generator = start(model, do_sample=True, temperature=2.0, top_k=0, random_seed=seed)
        generator.append_tokens(tokenizer.encode(PROMPT))
        texts.append(finish(generator))
    assert texts[0] == texts[1] != texts[2]


def test_rows_of_a_batch_are_the_same_as_alone(model: og.Model, tokenizer: og.Tokenizer) -> None:
    prompts = ["The list", "Return the value of the", PROMPT]
    batch = tokenizer.encode_batch(prompts)
    together = start(model, batch_size=3)
    together.append_tokens(batch)
    width = batch.shape()[1]
    for number, prompt in enumerate(prompts):
        alone = start(model)
        ids = tokenizer.encode(prompt)
        alone.append_tokens(ids)
        answer = finish(together, number)[width:]
        expected = finish(alone)[len(ids) :]
        assert answer[: len(expected)] == expected[: len(answer)]
        assert set(answer[len(expected) :]) <= {*tokenizer.eos_token_ids.tolist(), tokenizer.pad_token_id}


def test_long_sequences_have_other_angles(tmp_path: Path) -> None:
    """A sequence that passes LongRoPE's short length is computed again, and so is one that is rewound."""
    file = write_decoder(VARIANTS["phi3-long"], tmp_path / "model.onnx")
    names = {"key_names": "key_values.%d.key", "value_names": "key_values.%d.value"}
    decoder = {
        "filename": file.name,
        "inputs": {f"past_{name}": f"past_{value}" for name, value in names.items()},
        "outputs": {f"present_{name}": value.replace("key_values", "present") for name, value in names.items()},
    }
    config = {"type": "phi3", "context_length": 256, "vocab_size": VOCABULARY, "eos_token_id": [], "decoder": decoder}
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": config, "search": {}}), encoding="utf-8")
    prompt = [7 * number % VOCABULARY for number in range(SHORT_LENGTH - 5)]
    with weft.Generator(file, device="cpu", max_length=80) as generator:
        expected = [*prompt, *generator(prompt, temperature=0).tokens]
    generator = start(og.Model(str(tmp_path)), max_length=80)
    generator.append_tokens(prompt)
    assert finish(generator) == expected
    for length in (SHORT_LENGTH - 3, SHORT_LENGTH + 4):
        generator.rewind_to(length)
        generator.append_tokens(expected[length : length + 1])
        assert finish(generator) == expected


def test_guidance(model: og.Model, tokenizer: og.Tokenizer) -> None:
    pytest.importorskip("llguidance")
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=60)
    params.set_guidance("regex", "[0-9]{3}")
    generator = og.Generator(model, params)
    ids = tokenizer.encode(PROMPT)
    generator.append_tokens(ids)
    text = tokenizer.decode(finish(generator)[len(ids) :])
    assert len(text) == 3
    assert text.isdigit()
    with pytest.raises(RuntimeError, match="guidance type"):
        params.set_guidance("poem", "x")


def test_logits_of_all_tokens_of_the_last_run(model: og.Model, tokenizer: og.Tokenizer) -> None:
    ids = tokenizer.encode(PROMPT)
    generator = start(model)
    generator.append_tokens(ids)
    everything = generator.get_output("logits")
    assert everything.shape == (1, len(ids), generator.get_logits().shape[-1])
    np.testing.assert_array_equal(everything[:, -1:], generator.get_logits())
    assert generator.get_input("input_ids").tolist() == [ids.tolist()]
    assert generator.get_input("attention_mask").tolist() == [[1] * len(ids)]
    generator.generate_next_token()
    assert generator.get_output("logits").shape[1] == 1


def test_terminated_sessions_fail(model: og.Model, tokenizer: og.Tokenizer) -> None:
    generator = start(model)
    generator.append_tokens(tokenizer.encode(PROMPT))
    generator.generate_next_token()
    generator.set_runtime_option("terminate_session", "1")
    with pytest.raises(RuntimeError, match="terminated"):
        generator.generate_next_token()
    generator.set_runtime_option("terminate_session", "0")
    generator.generate_next_token()


@pytest.mark.parametrize(
    "call",
    [
        lambda _: og.Images.open("x.png"),
        lambda _: og.Audios.open("x.wav"),
        og.Adapters,
        og.Engine,
        lambda model: model.create_multimodal_processor(),
        lambda model: start(model).get_output("present.0.key"),
        lambda model: start(model).set_inputs(og.NamedTensors()),
        lambda _: og.Config("no such folder"),
        lambda _: og.register_execution_provider_library("a", "b"),
    ],
)
def test_refusals_are_runtime_errors(model: og.Model, call: Any) -> None:
    with pytest.raises(RuntimeError, match=r"support|multi-modal|does not exist"):
        call(model)


def test_named_tensors() -> None:
    tensors = og.NamedTensors()
    tensors["a"] = np.arange(6).reshape(2, 3)
    assert tensors["a"].shape() == [2, 3]
    assert tensors.keys() == ["a"]
    assert "a" in tensors
    del tensors["a"]
    assert len(tensors) == 0


def test_providers_choose_the_device() -> None:
    config = og.Config(str(DEMO_MODEL))
    assert config.choose_device() == "cpu"
    config.append_provider("cuda")
    config.set_provider_option("cuda", "device_id", "1")
    assert config.choose_device() == "cuda:1"
    config.clear_providers()
    config.append_provider("webgpu")
    assert config.choose_device() == "webgpu"
    config.clear_providers()
    config.append_provider("abacus")
    with pytest.raises(RuntimeError, match="abacus"):
        og.Model(config)
