"""Folders of onnxruntime-genai, optimum and transformers.js, and what is wrong with others."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from generation.folders import genai_config, write_files, write_genai_folder, write_json, write_optimum_folder

import weft
from weft.errors import InputError, InvalidModelError, MissingFileError, ModelError, UnsupportedModelError
from weft.generation.folder import open_folder

WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "d_model": 384,
    "decoder_layers": 4,
    "encoder_layers": 6,
    "num_hidden_layers": 6,
    "decoder_attention_heads": 6,
    "max_target_positions": 448,
    "vocab_size": 51865,
    "eos_token_id": 50257,
    "decoder_start_token_id": 50258,
}


def test_genai_folder(tmp_path: Path) -> None:
    folder = open_folder(write_genai_folder(tmp_path / "tiny"))
    assert (folder.name, folder.kind, folder.origin, folder.model_type) == (
        "tiny",
        "decoder",
        "onnxruntime-genai",
        "qwen3",
    )
    assert folder.decoder == tmp_path / "tiny" / "model.onnx"
    assert (folder.layers, folder.kv_heads, folder.head_size, folder.hidden_size) == (2, 2, 16, 64)
    assert (folder.context_length, folder.max_length, folder.vocabulary, folder.shares_cache) == (512, 512, 300, True)
    assert (folder.end_tokens, folder.start_token, folder.pad_token) == ((5, 6), 1, 0)
    assert (folder.names.ids, folder.names.embeddings) == ("input_ids", "inputs_embeds")
    assert (folder.names.past_key, folder.names.present_value) == ("past_key_values.%d.key", "present.%d.value")
    assert folder.defaults == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "num_beams": 1,
        "length_penalty": 1.0,
        "n": 1,
    }
    assert repr(folder) == "ModelFolder('tiny', decoder, onnxruntime-genai)"
    assert open_folder(folder.decoder).end_tokens == (5, 6)  # its file has the same configuration beside it


def test_genai_details(tmp_path: Path) -> None:
    config = genai_config(
        model__eos_token_id=7,
        model__decoder__inputs__input_ids="tokens",
        model__decoder__inputs__position_ids=None,
        model__decoder__inputs__past_conv_names="past.%d.conv",
        model__decoder__sliding_window={"window_size": 128, "layers": [0]},
        model__embedding={"filename": "embedding.onnx"},
        search__do_sample=False,
        search__top_p=0.0,
    )
    folder = open_folder(write_genai_folder(tmp_path, config, ("model.onnx", "embedding.onnx")))
    assert (folder.end_tokens, folder.names.ids, folder.names.positions) == ((7,), "tokens", "position_ids")
    assert folder.names.further_inputs == {"past_conv_names": "past.%d.conv"}
    assert (folder.sliding_window, folder.sliding_layers) == (128, (0,))
    assert folder.embedding == tmp_path / "embedding.onnx"
    assert folder.defaults["temperature"] == 0
    assert "top_p" not in folder.defaults


def test_genai_whisper(tmp_path: Path) -> None:
    decoder = {
        "inputs": {
            "input_ids": "input_ids",
            "past_key_names": "past_key_self_%d",
            "past_value_names": "past_value_self_%d",
            "cross_past_key_names": "past_key_cross_%d",
            "cross_past_value_names": "past_value_cross_%d",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present_key_self_%d",
            "present_value_names": "present_value_self_%d",
        },
    }
    config = genai_config(
        model__type="whisper",
        model__decoder__inputs=decoder["inputs"],
        model__decoder__outputs=decoder["outputs"],
        model__encoder={
            "filename": "encoder.onnx",
            "inputs": {"audio_features": "audio_features"},
            "outputs": {
                "encoder_hidden_states": "encoder_hidden_states",
                "cross_present_key_names": "present_key_cross_%d",
                "cross_present_value_names": "present_value_cross_%d",
            },
        },
    )
    folder = open_folder(write_genai_folder(tmp_path, config, ("model.onnx", "encoder.onnx")))
    assert (folder.kind, folder.encoder) == ("encoder-decoder", tmp_path / "encoder.onnx")
    assert folder.names.cross_past_key == "past_key_cross_%d"
    assert folder.encoder_names.features == "audio_features"
    assert folder.encoder_names.cross_present_value == "present_value_cross_%d"


def test_genai_pipeline_of_one_stage(tmp_path: Path) -> None:
    config = genai_config(
        model__decoder__filename=None, model__decoder__pipeline=[{"decoder": {"filename": "model.onnx"}}]
    )
    assert open_folder(write_genai_folder(tmp_path, config)).names.mask == "attention_mask"


def test_genai_refusals(tmp_path: Path) -> None:
    stages = [{"embeddings": {"filename": "a.onnx"}, "transformer": {"filename": "b.onnx"}}]
    pipeline = write_genai_folder(tmp_path / "pipeline", genai_config(model__decoder__pipeline=stages))
    with pytest.raises(UnsupportedModelError, match=r"pipeline of 2 models \(embeddings, transformer\)"):
        open_folder(pipeline)
    vision = write_genai_folder(tmp_path / "vision", genai_config(model__vision={"filename": "vision.onnx"}))
    with pytest.raises(UnsupportedModelError, match=r"a model for vision, and weft generates text from text only"):
        open_folder(vision)
    for section, message in (
        ("joiner", "its model is a transducer"),
        ("encoder_decoder_init", "an old onnxruntime-genai"),
    ):
        change = {f"model__{section}": {"filename": "other.onnx"}}
        with pytest.raises(UnsupportedModelError, match=message):
            open_folder(write_genai_folder(tmp_path / section, genai_config(**change)))
    with pytest.raises(InputError, match=r"has one variant, so variant='q4'"):
        open_folder(write_genai_folder(tmp_path / "one"), variant="q4")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model__decoder": 3}, r"genai_config.json: model.decoder is 3, not an object"),
        ({"model__decoder__filename": None}, r"it names no decoder \(model.decoder.filename is missing\)"),
        ({"model__decoder__filename": 5}, r"model.decoder.filename is 5, not a text"),
        ({"model__decoder__filename": "../model.onnx"}, r"not the name of a file in this folder"),
        ({"model__decoder__filename": "/etc/passwd"}, r"not the name of a file in this folder"),
        ({"model__decoder__filename": "C:\\model.onnx"}, r"not the name of a file in this folder"),
        ({"model__decoder__filename": "a\0b"}, r"not the name of a file in this folder"),
        ({"model__decoder__filename": "other.onnx"}, r"other.onnx does not exist, but model.decoder.filename"),
        ({"model__decoder__head_size": "16"}, r"model.decoder.head_size is '16', not an integer from 1"),
        ({"model__decoder__head_size": True}, r"model.decoder.head_size is True, not an integer"),
        ({"model__decoder__inputs__past_key_names": "past"}, r"not a name with one %d for the layer"),
        ({"model__decoder__inputs__past_key_names": "past.%d.%s"}, r"not a name with one %d for the layer"),
        ({"model__decoder__pipeline": {"a": 1}}, r"model.decoder.pipeline is {'a': 1}, not a list"),
        ({"model__eos_token_id": "5"}, r"model.eos_token_id is '5', not an integer of at least -1, or a list"),
        ({"model__eos_token_id": [5, -2]}, r"not an integer of at least -1, or a list"),
        ({"search": []}, r"search is \[\], not an object"),
        ({"search__temperature": "hot"}, r"search.temperature is 'hot', not a number of at least 0"),
        ({"search__top_p": 2}, r"search.top_p is 2, not a number from 0 to 1"),
        ({"search__do_sample": 1}, r"search.do_sample is 1, not true or false"),
    ],
    ids=lambda case: next(iter(case)) if isinstance(case, dict) else "",
)
def test_genai_errors(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        open_folder(write_genai_folder(tmp_path, genai_config(**change)))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"model": ' + b"9" * 5000 + b"}"],
    ids=["empty", "cut", "list", "null", "not UTF-8", "deep", "long number"],
)
def test_broken_json(tmp_path: Path, content: bytes) -> None:
    write_genai_folder(tmp_path)
    (tmp_path / "genai_config.json").write_bytes(content)
    with pytest.raises(InvalidModelError, match=r"genai_config\.json: "):
        open_folder(tmp_path)


def test_optimum_folder(tmp_path: Path) -> None:
    generation = {"do_sample": True, "temperature": 0.7, "eos_token_id": [5, 9, 5], "stop_strings": "END", "min_p": 0.1}
    folder = open_folder(write_optimum_folder(tmp_path, generation=generation))
    assert (folder.kind, folder.origin, folder.variant) == ("decoder", "optimum", "fp32")
    assert (folder.layers, folder.kv_heads, folder.head_size, folder.context_length) == (2, 2, 16, 512)
    assert (folder.end_tokens, folder.start_token, folder.pad_token) == ((5, 9), 1, None)
    assert folder.defaults == {"temperature": 0.7, "top_k": 50, "min_p": 0.1, "stop": ("END",)}
    assert folder.names.cache_branch is None


def test_generation_config_is_greedy_by_default(tmp_path: Path) -> None:
    greedy = {"temperature": 0.7, "top_k": 3, "num_beams": 4, "early_stopping": "never", "max_new_tokens": 9}
    folder = open_folder(write_optimum_folder(tmp_path, generation={**greedy, "max_length": 99}))
    assert folder.defaults == {
        "temperature": 0,
        "top_k": 3,
        "num_beams": 4,
        "early_stopping": "never",
        "max_new_tokens": 9,
    }
    assert folder.max_length == 99
    assert open_folder(write_optimum_folder(tmp_path / "plain")).defaults == {"temperature": 0, "top_k": 50}


def test_no_tokens_and_lists_for_layers(tmp_path: Path) -> None:
    config = {"eos_token_id": [2, -1], "pad_token_id": -1, "num_kv_heads": [1, 2], "num_attention_heads": 4}
    folder = open_folder(
        write_optimum_folder(tmp_path, config=config, generation={"suppress_tokens": [-1], "top_k": -1})
    )
    assert (folder.end_tokens, folder.pad_token, folder.suppress_tokens, folder.kv_heads) == ((2,), None, (), 4)
    assert folder.defaults["top_k"] == 0
    falcon = {"model_type": "falcon", "multi_query": True, "num_kv_heads": 71, "num_attention_heads": 71}
    assert open_folder(write_optimum_folder(tmp_path, config=falcon)).kv_heads == 1


def test_variants(tmp_path: Path) -> None:
    names = ("model_q4.onnx", "model_fp16.onnx", "model_quantized.onnx", "model_q4f16.onnx")
    write_optimum_folder(tmp_path, [f"onnx/{name}" for name in names])
    assert open_folder(tmp_path).variant == "fp16"
    for variant, file in (("q4", "model_q4.onnx"), ("q8", "model_quantized.onnx"), ("q4f16", "model_q4f16.onnx")):
        assert open_folder(tmp_path, variant).decoder == tmp_path / "onnx" / file
    with pytest.raises(InputError, match=r"no variant 'int8' of its decoder; it has fp16, quantized, q4f16, q4"):
        open_folder(tmp_path, "int8")
    write_files(tmp_path, ["onnx/model.onnx"])
    assert open_folder(tmp_path).variant == "fp32"
    assert open_folder(tmp_path / "onnx" / "model_q4.onnx").variant == "q4"
    assert open_folder(tmp_path / "onnx" / "model_q4.onnx").end_tokens == (5,)


def test_encoder_decoder(tmp_path: Path) -> None:
    files = ("encoder_model.onnx", "decoder_model_merged_q4.onnx", "encoder_model_fp16.onnx")
    generation = {
        "forced_decoder_ids": [[1, None], [2, 50359]],
        "suppress_tokens": [1, 2],
        "begin_suppress_tokens": [220, 50257],
        "max_length": 448,
    }
    write_optimum_folder(tmp_path, [f"onnx/{name}" for name in files], WHISPER, generation)
    folder = open_folder(tmp_path)
    assert (folder.kind, folder.variant) == ("encoder-decoder", "q4")
    assert folder.encoder == tmp_path / "onnx" / "encoder_model.onnx"
    assert (folder.layers, folder.kv_heads, folder.head_size, folder.context_length) == (4, 6, 64, 448)
    assert folder.names.cache_branch == "use_cache_branch"
    assert folder.names.cross_past_key == "past_key_values.%d.encoder.key"
    assert (folder.decoder_start_token, folder.end_tokens) == (50258, (50257,))
    assert (folder.forced_tokens, folder.suppress_tokens) == ({2: 50359}, (1, 2))
    assert folder.begin_suppress_tokens == (220, 50257)


def test_two_decoders(tmp_path: Path) -> None:
    files = ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx")
    t5 = {"model_type": "t5", "d_kv": 64, "num_heads": 8, "n_positions": 512, "relative_attention_num_buckets": 32}
    folder = open_folder(write_optimum_folder(tmp_path, files, t5))
    assert folder.decoder == tmp_path / "decoder_model.onnx"
    assert folder.decoder_with_past == tmp_path / "decoder_with_past_model.onnx"
    assert folder.context_length is None
    (tmp_path / "decoder_model.onnx").unlink()
    with pytest.raises(MissingFileError, match=r"no file of the decoder of its encoder"):
        open_folder(tmp_path)


def test_sliding_windows(tmp_path: Path) -> None:
    def window(**config: Any) -> tuple[int | None, tuple[int, ...] | None]:
        folder = open_folder(write_optimum_folder(tmp_path, config={"sliding_window": 8, **config}))
        return folder.sliding_window, folder.sliding_layers

    assert window() == (8, None)
    assert window(use_sliding_window=False) == (None, None)
    assert window(layer_types=["sliding_attention", "full_attention"]) == (8, (0,))
    assert window(layer_types=["full_attention"]) == (None, None)
    assert window(sliding_window=None, text_config={"sliding_window": 4}) == (4, None)


def test_embedding_file(tmp_path: Path) -> None:
    files = ("onnx/decoder_model_merged_q4.onnx", "onnx/embed_tokens_q4.onnx", "onnx/embed_tokens.onnx")
    folder = open_folder(write_optimum_folder(tmp_path, files))
    assert folder.embedding == tmp_path / "onnx" / "embed_tokens_q4.onnx"


def test_single_file(tmp_path: Path) -> None:
    write_files(tmp_path, ["gpt.onnx"])
    tokens = {"7": {"content": "<end>", "special": True}}
    write_json(tmp_path / "tokenizer_config.json", {"eos_token": "<end>", "added_tokens_decoder": tokens})
    for path in (tmp_path, tmp_path / "gpt.onnx", str(tmp_path)):
        folder = open_folder(path)
        assert (folder.origin, folder.name, folder.end_tokens) == ("file", "gpt", (7,))
    write_json(tmp_path / "tokenizer_config.json", {"eos_token": {"content": "</s>"}})
    write_json(tmp_path / "tokenizer.json", {"model": {"vocab": {"</s>": 2}}})
    assert open_folder(tmp_path).end_tokens == (2,)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": 3})
    assert open_folder(tmp_path).end_tokens == (3,)


def test_cached_snapshot_has_the_name_of_its_repository(tmp_path: Path) -> None:
    path = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "c1899de2"
    assert open_folder(write_optimum_folder(path)).name == "Qwen/Qwen3-0.6B"


def test_other_folders(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"does not exist\n  hint: pass the folder of a language model"):
        open_folder(tmp_path / "none")
    with pytest.raises(MissingFileError, match=r"no ONNX file, neither .*\n  hint: export the model: optimum-cli"):
        open_folder(tmp_path)
    write_files(tmp_path, ["model.safetensors", "config.json"])
    with pytest.raises(UnsupportedModelError, match=r"weights of safetensors, but no ONNX file\n  hint: .*builder -m"):
        open_folder(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"is a file of safetensors, not of ONNX"):
        open_folder(tmp_path / "model.safetensors")
    write_files(tmp_path / "two", ["a.onnx", "b.onnx"])
    with pytest.raises(ModelError, match=r"has 2 ONNX files, and none is named as a decoder \(a.onnx, b.onnx\)"):
        open_folder(tmp_path / "two")
    classifier = {"architectures": ["BertForSequenceClassification"], "model_type": "bert"}
    with pytest.raises(UnsupportedModelError, match=r"BertForSequenceClassification, which does not generate text"):
        open_folder(write_optimum_folder(tmp_path / "bert", config=classifier))
    with pytest.raises(InputError, match="5 is not a path"):
        open_folder(5)  # type: ignore[arg-type]


def test_random_changes_of_configurations(tmp_path: Path) -> None:
    """Replace random fields by values of other types: every error is weft's."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    values = [None, True, -1, 0, 3.5, 1e400, 2**70, "", "x", "%d%d", "../x", [], [None], [[1]], {}, {"a": {}}]
    configs = {
        "genai_config.json": genai_config(),
        "config.json": WHISPER | {"text_config": {"sliding_window": 3}, "layer_types": ["x"]},
        "generation_config.json": {
            "top_k": 1,
            "eos_token_id": [1],
            "forced_decoder_ids": [[1, 2]],
            "stop_strings": "a",
        },
        "tokenizer_config.json": {"eos_token": "</s>", "added_tokens_decoder": {"1": {"content": "a"}}},
        "tokenizer.json": {"added_tokens": [{"content": "</s>", "id": 1}], "model": {"vocab": {}}},
    }
    files = ("model.onnx", "onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx")
    for case in range(300):
        folder = tmp_path / str(case)
        write_files(folder, files)
        for name, config in configs.items():
            if name == "genai_config.json" and case % 2:
                continue
            changed = json.loads(json.dumps(config))
            place = changed
            while True:
                key = numbers.choice(list(place))
                if not isinstance(place[key], dict) or not place[key] or numbers.random() < 0.2:
                    break
                place = place[key]
            place[key] = numbers.choice(values)
            write_json(folder / name, changed)
        with suppress(weft.WeftError):
            open_folder(folder)
