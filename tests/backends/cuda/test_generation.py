"""Decode steps of a generator replay CUDA graphs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from backends.cuda.recording_driver import RecordingDriver
from generation.small_decoders import VARIANTS, write_decoder

import weft


@pytest.mark.parametrize("form", ["llama-int4", "optimum"])
def test_decode_steps_replay_graphs(driver: RecordingDriver, tmp_path: Path, form: str) -> None:
    file = write_decoder(VARIANTS[form], tmp_path / "decoder.onnx")
    with weft.Generator(file, device="cuda:0", max_length=128, speculate=False) as generator:
        generator([1, 2, 3], max_new_tokens=20, temperature=0)
        before = driver.calls.copy()
        answer = generator([1, 2, 3], max_new_tokens=21, temperature=0)
        assert len(answer.tokens) == 21
        calls = driver.calls - before
        assert calls["cuGraphLaunch"] >= 2 * 20  # the decoder and the sampler
        assert calls["cuGraphInstantiateWithFlags"] <= 1
        assert calls["cuLaunchKernel"] < 100  # those of the prompt
        assert len(driver.host_memory) <= 2  # for tokens that are read, reused from step to step


@pytest.mark.parametrize("form", ["llama-int4", "llama", "optimum"])
def test_kernels_of_a_decode_step(driver: RecordingDriver, tmp_path: Path, form: str) -> None:
    """A layer writes its keys and values with a kernel each, and a short row needs one kernel for the choice."""
    file = write_decoder(VARIANTS[form], tmp_path / "decoder.onnx")
    with weft.Generator(file, device="cuda:0", max_length=128, speculate=False) as generator:
        generator([1, 2, 3], max_new_tokens=20, temperature=0)
    decoder, sampler = (
        Counter(driver.names[node.function].rsplit("_", 1)[0] for node in driver.graphs[graph] if node.function)
        for graph in driver.launched[-2:]
    )
    layers = 2
    assert decoder["scatter"] == 2 * layers
    assert decoder["attention"] == decoder["attention_parts"] == layers
    products = decoder["multiply_fragments"] + decoder["unpack_rows"]
    assert decoder.total() - products - decoder["rows"] - decoder["map"] == 4 * layers, decoder
    assert decoder["map"] <= 2 * layers
    assert sampler == {"rows": 1}
