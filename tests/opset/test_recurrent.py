"""Recurrent layers, against onnxruntime, whose float32 kernels lack batch-first layout: that is turned by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_onnxruntime, run_weft

from weft.errors import WeftError

Array = np.ndarray[Any, Any]

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LENGTH, BATCH, WIDTH, HIDDEN = 5, 3, 4, 2


def layer_inputs(op: str, direction: str, *, bias: bool, lengths: bool, initial: bool, peepholes: bool = False) -> Any:
    count, gates = 2 if direction == "bidirectional" else 1, GATES[op]
    inputs: list[Array | None] = [
        random_array(1, (LENGTH, BATCH, WIDTH)),
        random_array(2, (count, gates * HIDDEN, WIDTH), low=-1, high=1),
        random_array(3, (count, gates * HIDDEN, HIDDEN), low=-1, high=1),
        random_array(4, (count, 2 * gates * HIDDEN)) if bias else None,
        np.array([5, 1, 3], np.int32) if lengths else None,
        random_array(5, (count, BATCH, HIDDEN)) if initial else None,
    ]
    if op == "LSTM":
        inputs.append(random_array(6, (count, BATCH, HIDDEN)) if initial else None)
        inputs.append(random_array(7, (count, 3 * HIDDEN)) if peepholes else None)
    while inputs[-1] is None:
        inputs.pop()
    return inputs


def check_layer(op: str, inputs: Any, opset: int = 14, **attributes: Any) -> None:
    outputs = 3 if op == "LSTM" else 2
    check(op, inputs, opset=opset, outputs=outputs, rtol=1e-4, atol=1e-5, hidden_size=HIDDEN, **attributes)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("initial", [False, True])
def test_layers(op: str, direction: str, bias: bool, lengths: bool, initial: bool) -> None:
    check_layer(op, layer_inputs(op, direction, bias=bias, lengths=lengths, initial=initial), direction=direction)


@pytest.mark.parametrize("opset", [7, 22])
@pytest.mark.parametrize("op", GATES)
def test_versions(op: str, opset: int) -> None:
    inputs = layer_inputs(op, "forward", bias=True, lengths=False, initial=True)
    outputs = 3 if op == "LSTM" else 2
    reference = run_onnxruntime(node_model(op, inputs, opset=14, outputs=outputs, hidden_size=HIDDEN), inputs)
    check_layer(op, inputs, opset, expected=reference)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("bias", [False, True])
def test_gru_that_resets_after_the_product(direction: str, bias: bool) -> None:
    inputs = layer_inputs("GRU", direction, bias=bias, lengths=True, initial=True)
    check_layer("GRU", inputs, direction=direction, linear_before_reset=1)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("input_forget", [0, 1])
def test_lstm_with_peepholes(direction: str, input_forget: int) -> None:
    inputs = layer_inputs("LSTM", direction, bias=True, lengths=True, initial=True, peepholes=True)
    check_layer("LSTM", inputs, direction=direction, input_forget=input_forget)


@pytest.mark.parametrize("op", GATES)
def test_clip(op: str) -> None:
    inputs = layer_inputs(op, "bidirectional", bias=True, lengths=False, initial=True)
    check_layer(op, inputs, direction="bidirectional", clip=0.4)


ACTIVATIONS: list[tuple[str, list[float], list[float]]] = [
    ("Relu", [], []), ("Tanh", [], []), ("Sigmoid", [], []), ("Softsign", [], []), ("Softplus", [], []),
    ("LeakyRelu", [0.3], []), ("ThresholdedRelu", [0.2], []), ("Elu", [0.7], []), ("Affine", [0.5], [0.1]),
    ("ScaledTanh", [0.8], [0.6]), ("HardSigmoid", [0.3], [0.4]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "alpha", "beta"), ACTIVATIONS)
def test_activations(name: str, alpha: list[float], beta: list[float]) -> None:
    inputs = layer_inputs("RNN", "forward", bias=True, lengths=False, initial=True)
    options: dict[str, Any] = {"activations": [name]}
    options |= {"activation_alpha": alpha} if alpha else {}
    options |= {"activation_beta": beta} if beta else {}
    check_layer("RNN", inputs, **options)


def test_activations_take_their_parameters_in_order() -> None:
    """Only those that have an alpha or a beta take one."""
    inputs = layer_inputs("LSTM", "forward", bias=True, lengths=False, initial=True)
    names = ["HardSigmoid", "Tanh", "ScaledTanh"]
    check_layer("LSTM", inputs, activations=names, activation_alpha=[0.3, 0.8], activation_beta=[0.4, 0.6])


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_batch_first(op: str, direction: str) -> None:
    inputs = layer_inputs(op, direction, bias=True, lengths=True, initial=True)
    outputs = 3 if op == "LSTM" else 2
    model = node_model(op, inputs, opset=14, outputs=outputs, hidden_size=HIDDEN, direction=direction)
    whole, *lasts = run_onnxruntime(model, inputs)
    reference = [whole.transpose(2, 0, 1, 3), *(last.transpose(1, 0, 2) for last in lasts)]
    turned = [value.swapaxes(0, 1) if number in (0, 5, 6) else value for number, value in enumerate(inputs)]
    check_layer(op, turned, direction=direction, layout=1, expected=reference)


@pytest.mark.parametrize("op", GATES)
def test_narrow_floats(op: str) -> None:
    inputs = layer_inputs(op, "forward", bias=True, lengths=False, initial=True)
    narrow = [value if value is None else value.astype(np.float16) for value in inputs]
    wide = [value if value is None else value.astype(np.float32) for value in narrow]
    reference = run_onnxruntime(node_model(op, wide, opset=14, hidden_size=HIDDEN), wide)[0].astype(np.float16)
    check(op, narrow, opset=14, expected=[reference], rtol=1e-2, atol=1e-3, hidden_size=HIDDEN)


@pytest.mark.parametrize(
    "attributes", [{"direction": "sideways"}, {"activations": ["Sinus"]}, {"hidden_size": 3}], ids=str
)
def test_rejects(attributes: dict[str, Any]) -> None:
    inputs = layer_inputs("RNN", "forward", bias=True, lengths=False, initial=True)
    with pytest.raises(WeftError):
        run_weft(node_model("RNN", inputs, opset=14, **attributes), inputs)
