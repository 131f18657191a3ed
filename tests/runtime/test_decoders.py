"""Decoders whose cache grows with each token, in the forms of exporters, against onnxruntime and each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from models.decoders import DECODERS, DecoderShape, build_decoder, decoder_inputs, present_name

import weft

SMALL = DecoderShape(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, vocabulary=50, head_size=16)
LENGTHS = (5, 1, 1, 3, 1)  # of the prompt, then of each step


class Peer:
    """onnxruntime with the methods of weft.Model that a decoder needs."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        return dict(zip((output.name for output in self.session.get_outputs()), self.session.run(None, feeds)))


def generate(name: str, model: Any) -> list[Any]:
    """Run a prompt and some steps, and return the logits of each."""
    form, random, past_length = small_form(name), np.random.default_rng(0), 0
    past = {key: np.zeros((1, form.shape.kv_heads, 0, 16), np.float32) for key in form.past_names}
    logits = []
    for length in LENGTHS:
        tokens = random.integers(0, SMALL.vocabulary, (1, length))
        outputs = model.run({**decoder_inputs(name, tokens, past_length), **past})
        past = {key: outputs[present_name(key)] for key in past}
        logits.append(outputs["logits"])
        past_length += length
    return logits


def small_form(name: str) -> Any:
    shape = SMALL if name.startswith("qwen") else replace(SMALL, kv_heads=SMALL.heads)
    return replace(DECODERS[name], shape=shape)


@pytest.mark.parametrize("device", ["cpu", "webgpu:0"])
@pytest.mark.parametrize("name", DECODERS)
def test_growing_cache(name: str, device: str, tmp_path: Path) -> None:
    path = build_decoder(name, small_form(name), tmp_path)
    tolerance = 5e-2 if "int4" in name else 1e-4  # onnxruntime quantizes activations at accuracy level 4
    expected = generate(name, Peer(path))
    for actual, array in zip(generate(name, weft.load(path, device=device)), expected, strict=True):
        np.testing.assert_allclose(actual, array, rtol=tolerance, atol=tolerance)


def test_forms_agree(tmp_path: Path) -> None:
    """The two exporters' forms of an architecture draw the same weights, so their results are close."""
    forms = [
        generate(name, weft.load(build_decoder(name, small_form(name), tmp_path), device="cpu"))
        for name in ("qwen-genai", "qwen-optimum")
    ]
    for first, second in zip(*forms, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)
