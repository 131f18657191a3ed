"""Decoders in the forms of exporters have the logits of onnxruntime, in all modes of generation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from generation.agreement import GENERATOR_MODES, MODES, Comparison, load_onnxruntime
from generation.small_decoders import VARIANTS, Variant, write_decoder

TOLERANCE = 1e-4
# test_engine.py has those with a quantized cache, with codes of activations that rounding changes, and with sequences
# that are computed again.
NAMES = [
    name
    for name, variant in VARIANTS.items()
    if not variant.cache and not variant.short_length and variant.weights != "dynamic"
]


@pytest.mark.parametrize("name", NAMES)
def test_logits_agree_with_onnxruntime(name: str, tmp_path: Path) -> None:
    comparison = Comparison(write_decoder(VARIANTS[name], tmp_path / "model.onnx"))
    agreements = [comparison.measure(mode) for mode in (*MODES, *GENERATOR_MODES)]
    assert all(agreement.largest > 0.5 for agreement in agreements)  # flat logits would hide errors
    assert [agreement for agreement in agreements if not agreement.is_within(TOLERANCE)] == []


@pytest.mark.parametrize("change", [{"windows": (5, -1)}, {"softcap": 4.0}, {"bias": True}, {"interleaved": True}])
def test_harness_finds_differences(change: dict[str, Any], tmp_path: Path) -> None:
    original = Variant(windows=(6, -1), softcap=5.0)
    comparison = Comparison(write_decoder(original, tmp_path / "model.onnx"))
    comparison.oracle = load_onnxruntime(write_decoder(replace(original, **change), tmp_path / "other.onnx"))
    assert [mode for mode in MODES if comparison.measure(mode).is_within(TOLERANCE)] == []
