"""All forms of the metamorphic suite are equivalent to the plain form, and its list of refusals is valid."""

from __future__ import annotations

import numpy as np
import pytest
from attack.devices import DEVICES
from attack.families.metamorphic import _sample, _suite
from attack.forms import COMPILED, EXACT, FORMS
from attack.refusals import LIST, listed, read
from onnx import shape_inference
from onnx.reference import ReferenceEvaluator

from weft.compat.conformance.compare import find_difference

CASES = ("test_add_bcast", "test_layer_normalization_2d_axis1", "test_reshape_reordered_all_dims", "test_top_k")
NOT_RUN = {  # by onnx's evaluator
    "defaults": "it wants all inputs",
    "after an optional": "its optionals are lists",
    "loop rows": "it takes no condition for a false one",
    "distinct sizes, loop rows": "the same",
}


@pytest.mark.parametrize("form", FORMS)
def test_form_is_equivalent(form: str) -> None:
    """By onnx's checker and evaluator, independent of weft."""
    applied = 0
    for case in CASES:
        plain = _sample(case)
        content = plain.model.SerializeToString()
        sample = FORMS[form](plain)
        assert plain.model.SerializeToString() == content, "the form changed the sample that it was given"
        if sample is None:
            continue
        applied += 1
        shape_inference.infer_shapes(sample.model, check_type=True, strict_mode=True)
        if form in NOT_RUN:
            continue
        names = list(sample.expected)
        results = ReferenceEvaluator(sample.model).run(names, dict(sample.inputs))
        for name, result in zip(names, results, strict=True):
            problem = find_difference(np.asarray(result), sample.expected[name], rtol=1e-3, atol=1e-6)
            assert problem is None, f"{case}: output {name!r} {problem}"
    print(f"{applied} cases")


def test_forms_have_one_list() -> None:
    assert set(EXACT) <= set(FORMS)
    assert set(COMPILED) <= set(FORMS)
    assert not any("|" in form or "#" in form for form in FORMS)


@pytest.mark.parametrize("device", ["reference", *DEVICES])
def test_refusals_name_cases_and_forms(device: str) -> None:
    for case, form in listed(device):
        assert case in _suite()
        assert form in FORMS


def test_refusals_are_read() -> None:
    text = "# about\n\nall | test_a | then  # why\ncpu, webgpu | test_b | else  # why not\n"
    assert read(text, "reference") == {("test_a", "then"): "why"}
    assert read(text, "webgpu:0") == {("test_a", "then"): "why", ("test_b", "else"): "why not"}
    for line in ("all | test_a | then", "all | test_a # why", "all | a | b # why\nall | a | b # why"):
        with pytest.raises(AssertionError, match="line"):
            read(line, "cpu")
    assert LIST.exists()
