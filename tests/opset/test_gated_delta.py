"""Gates and gated delta networks: against onnxruntime, or its ops for single sequences where it has no CPU kernel."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from opset.oracle import Array, check, node_model, random_array, run_onnxruntime

import weft

MICROSOFT = {"opset": 1, "domain": "com.microsoft"}
CLOSE = {"atol": 2e-5, "rtol": 1e-4}
HALF = {"atol": 4e-3, "rtol": 4e-3}
DEVICES = ["reference", "cpu", "webgpu:0"]


def _run(model: Any, inputs: list[Any], device: str) -> list[Array]:
    loaded = weft.load(model, device=device)
    return list(loaded.run({f"x{n}": x for n, x in enumerate(inputs) if x is not None}).values())


def _check_on(device: str, op: str, inputs: list[Any], expected: list[Any], **attributes: Any) -> None:
    for symbolic in (False, True):
        model = node_model(op, inputs, outputs=len(expected), symbolic=symbolic, **attributes, **MICROSOFT)
        for actual, reference in zip(_run(model, inputs, device), expected, strict=True):
            assert actual.shape == reference.shape
            np.testing.assert_allclose(actual, reference, **CLOSE)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("op", "shapes", "outputs", "attributes"),
    [
        ("GatedAdd", [(2, 3, 8), (2, 3, 8), (2, 3, 1)], 1, {}),
        ("ScaledSiLU", [(2, 3, 8)], 1, {"alpha": 1.7}),
        ("ScaledSiLU", [(2, 3, 8), ()], 1, {}),
        ("GatedRMSNorm", [(2, 3, 8), (8,), (2, 3, 8)], 1, {}),
        ("GatedRMSNorm", [(2, 3, 8), (4,), (2, 3, 8)], 1, {"activation": "sigmoid", "epsilon": 1e-2}),
        ("GatedRMSNorm", [(5, 12), (4,), (5, 12)], 1, {"activation": "swish"}),
        ("BranchwiseRMSNorm", [(2, 3, 8), (8,)], 1, {"num_branches": 2}),
        ("BranchwiseRMSNorm", [(2, 3, 8), (4,)], 1, {"num_branches": 2, "epsilon": 1e-2}),
        ("BranchwiseRMSNorm", [(2, 3, 8), (3, 8)], 1, {}),
        ("BranchwiseRMSNorm", [(2, 3, 8)], 1, {}),
        ("HyperConnectionPreMix", [(2, 5, 3, 4), (2, 5, 3)], 1, {"reduction_scale": 0.5}),
        ("HyperConnectionPreMix", [(2, 5, 3, 4), (2, 5, 3, 4)], 1, {}),
        ("HyperConnectionPreMix", [(2, 5, 12), (2, 5, 12)], 1, {"num_branches": 3}),
        ("HyperConnectionPostMix", [(2, 5, 3, 4), (2, 5, 4), (2, 5, 3), (2, 5, 3, 3)], 1, {}),
        ("HyperConnectionPostMix", [(2, 5, 3, 4), (2, 5, 4), (2, 5, 3, 1)], 1, {}),
        ("HyperConnectionPostMix", [(2, 5, 12), (2, 5, 4), (2, 5, 3, 4), (2, 5, 3, 3)], 1, {"num_branches": 3}),
        ("EngramGate", [(2, 5, 3, 4), (2, 5, 3, 4), (2, 5, 4), (3, 4), (3, 4)], 1, {}),
        ("EngramGate", [(2, 5, 3, 4), (2, 5, 3, 4), (2, 5, 4), (3, 4), (3, 4), (3, 4)], 2, {"epsilon": 1e-3}),
    ],
)
def test_gates(op: str, shapes: list[Any], outputs: int, attributes: dict[str, Any], dtype: Any) -> None:
    inputs = [random_array(n, shape, dtype, -1, 1) for n, shape in enumerate(shapes)]
    tolerance = CLOSE if dtype is np.float32 else HALF
    try:
        check(op, inputs, outputs=outputs, **attributes, **tolerance, **MICROSOFT)
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error) or dtype is np.float32:
            raise
        pytest.skip("onnxruntime has no kernel for float16")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_linear_attention_gate(dtype: Any) -> None:
    a, b = random_array(0, (2, 3, 8), dtype, -30, 30), random_array(1, (2, 3, 8), dtype)
    inputs = [a, random_array(2, (8,)), random_array(3, (8,)), b]
    wide = a.astype(np.float64) + inputs[1]
    decay = (inputs[2] * np.logaddexp(0, wide)).astype(dtype)
    beta = (1 / (1 + np.exp(-b.astype(np.float64)))).astype(dtype)
    tolerance = CLOSE if dtype is np.float32 else HALF
    check("LinearAttentionGate", inputs, expected=[decay, beta], outputs=2, **tolerance, **MICROSOFT)
    if dtype is np.float32:
        check("LinearAttentionGate", inputs, outputs=2, **CLOSE, **MICROSOFT)
        check("LinearAttentionGate", inputs[:3], outputs=1, **CLOSE, **MICROSOFT)


KEYS, HEADS, DEPTH, WIDTH, COUNTS = 2, 4, 3, 5, [4, 1, 7]


def _network(counts: list[int], *, per_key: bool = False) -> dict[str, Array]:
    tokens = sum(counts)
    return {
        "query": random_array(0, (tokens, KEYS, DEPTH), low=-1, high=1),
        "key": random_array(1, (tokens, KEYS, DEPTH), low=-1, high=1),
        "value": random_array(2, (tokens, HEADS, WIDTH), low=-1, high=1),
        "decay": random_array(3, (tokens, HEADS, DEPTH) if per_key else (tokens, HEADS), low=-1, high=0),
        "beta": random_array(4, (tokens, HEADS), low=0, high=1),
        "state": random_array(5, (len(counts), HEADS, WIDTH, DEPTH), low=-1, high=1),
    }


def _compute_network(x: dict[str, Array], counts: list[int], rule: str, scale: float) -> tuple[list[Array], list[Any]]:
    """The recurrence of the schema in float64: results and states, and the factors of each token."""
    results, states, factors = [], [], []
    starts = np.cumsum([0, *counts])
    wide = {name: array.astype(np.float64) for name, array in x.items()}
    for number, count in enumerate(counts):
        state = wide["state"][number].transpose(0, 2, 1).copy()
        for token in range(starts[number], starts[number] + count):
            factor = []
            for head in range(HEADS):
                q, k = (wide[name][token, head // (HEADS // KEYS)] for name in ("query", "key"))
                decay = (
                    np.exp(np.broadcast_to(wide["decay"][token, head], (DEPTH,))) if "gated" in rule else np.ones(DEPTH)
                )
                state[head] *= decay[:, None]
                update = wide["value"][token, head]
                if "delta" in rule:
                    update = wide["beta"][token, head] * (update - k @ state[head])
                state[head] += np.outer(k, update)
                results.append(q @ state[head] * scale)
                factor.append((decay[0], update))
            factors.append((number, token, factor))
        states.append(state.transpose(0, 2, 1))
    return [np.reshape(results, (sum(counts), HEADS, WIDTH)), np.stack(states)], factors


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("form", ["packed", "uniform", "batch", "joined", "per key"])
def test_gated_delta_net(rule: str, form: str, device: str) -> None:
    counts = COUNTS if form in ("packed", "per key") else [4, 4]
    x = _network(counts, per_key=form == "per key")
    expected, _ = _compute_network(x, counts, rule, DEPTH**-0.5)
    lengths = np.cumsum([0, *counts]).astype(np.int32) if counts is COUNTS else None
    decay, beta = x["decay"] if "gated" in rule else None, x["beta"] if "delta" in rule else None
    if form == "batch":
        x = {name: array if name == "state" else array.reshape(2, 4, *array.shape[1:]) for name, array in x.items()}
        decay, beta = (None if gate is None else gate.reshape(2, 4, -1) for gate in (decay, beta))
        expected[0] = expected[0].reshape(2, 4, HEADS, WIDTH)
    inputs: list[Any] = [x["query"], x["key"], x["value"], lengths, decay, beta, x["state"]]
    if form == "joined":
        parts = [x[name].reshape(8, -1) for name in ("query", "key", "value")]
        inputs[:3] = [np.concatenate(parts, 1), None, None]
    _check_on(device, "GatedDeltaNet", inputs, expected, update_rule=rule)


@pytest.mark.parametrize("device", DEVICES)
def test_gated_delta_net_of_qwen(device: str) -> None:
    """Activations that the op applies itself, as in the graphs of Qwen3-Next."""
    x = _network(COUNTS)
    x["decay"], x["beta"] = random_array(6, x["decay"].shape), random_array(7, x["beta"].shape)
    scales, biases = random_array(8, (HEADS,), low=-2, high=1), random_array(9, (HEADS,))
    plain = dict(x)
    plain["decay"] = (-np.exp(scales) * np.logaddexp(0, x["decay"] + biases)).astype(np.float32)
    plain["beta"] = (1 / (1 + np.exp(-x["beta"]))).astype(np.float32)
    for name in ("query", "key"):
        plain[name] = x[name] / np.sqrt((x[name] ** 2).sum(-1, keepdims=True))
    expected, _ = _compute_network(plain, COUNTS, "gated_delta", 0.3)
    lengths = np.cumsum([0, *COUNTS]).astype(np.int32)
    inputs = [*(x[n] for n in ("query", "key", "value")), lengths, x["decay"], x["beta"], x["state"], scales, biases]
    attributes = {"qk_l2_norm": 1, "gate_activation": "qwen", "beta_activation": "sigmoid", "scale": 0.3}
    _check_on(device, "GatedDeltaNet", inputs, expected, **attributes)


@pytest.mark.parametrize("active", [None, 0, 1])
def test_gated_delta_net_captures_transitions(active: int | None) -> None:
    capacity, x, captured = 3, _network(COUNTS), np.array([2, 5, 9], np.int32)
    expected, factors = _compute_network(x, COUNTS, "gated_delta", DEPTH**-0.5)
    decays, keys = np.zeros((3, capacity, HEADS)), np.zeros((3, capacity, KEYS, DEPTH))
    updates = np.zeros((3, capacity, HEADS, WIDTH))
    starts = np.cumsum([0, *COUNTS])
    for number, token, factor in factors:
        step = token - starts[number]
        if step < min(captured[number], capacity) and active != 0:
            keys[number, step] = x["key"][token]
            for head, (decay, update) in enumerate(factor):
                decays[number, step, head], updates[number, step, head] = decay, update
    parts = [array.reshape(3, -1) for array in (decays, keys, updates)]
    expected = [*expected, np.concatenate(parts, 1)]
    control = None if active is None else np.array([active], np.int32)
    arrays = [x[n] for n in ("query", "key", "value")]
    inputs = [*arrays, starts.astype(np.int32), x["decay"], x["beta"], x["state"], None, None, captured, control]
    _check_on("reference", "GatedDeltaNet", inputs, expected, state_update_capacity=capacity)
    _check_on("cpu", "GatedDeltaNet", inputs, expected, state_update_capacity=capacity)


@pytest.mark.parametrize("device", ["cpu", "webgpu:0"])
def test_chunks_of_a_gated_delta_net_have_the_bits_of_the_whole(device: str) -> None:
    x = _network([12])
    names = ("query", "key", "value", "decay", "beta")

    def take(start: int, end: int, state: Array) -> list[Any]:
        query, key, value, decay, beta = (x[name][start:end] for name in names)
        return [query, key, value, None, decay, beta, state]

    whole = take(0, 12, x["state"])
    model = node_model("GatedDeltaNet", whole, outputs=2, symbolic=True, **MICROSOFT)
    expected = _run(model, whole, device)
    results, state, start = [], x["state"], 0
    for count in (5, 1, 1, 4, 1):
        result, state = _run(model, take(start, start + count, state), device)
        results.append(result)
        start += count
    np.testing.assert_array_equal(np.concatenate(results), expected[0])
    np.testing.assert_array_equal(state, expected[1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attributes", [{}, {"activation": "silu"}, {"dilation": 2}])
@pytest.mark.parametrize("bias", [False, True])
def test_varlen_causal_conv_with_state(attributes: dict[str, Any], bias: bool, device: str) -> None:
    """Each sequence gives what onnxruntime's CausalConvWithState gives for it alone."""
    size = 3 * attributes.get("dilation", 1)
    x, weight, state = random_array(0, (12, 5)), random_array(1, (5, 1, 4)), random_array(3, (3, 5, size))
    biases = random_array(2, (5,)) if bias else None
    starts = np.cumsum([0, *COUNTS])
    results, states = [], []
    for number, (start, end) in enumerate(pairwise(starts)):
        single = [x[None, start:end].transpose(0, 2, 1).copy(), weight, biases, state[number : number + 1]]
        outputs = run_onnxruntime(
            node_model("CausalConvWithState", single, outputs=2, **attributes, **MICROSOFT), single
        )
        results.append(outputs[0][0].T)
        states.append(outputs[1])
    expected = [np.concatenate(results), np.concatenate(states)]
    inputs = [x, weight, starts.astype(np.int32), biases, state]
    _check_on(device, "VarlenCausalConvWithState", inputs, expected, **attributes)
    if not attributes:
        captured = np.zeros((3, 3, 5), np.float32)
        captured[0, :2], captured[1, :1], captured[2] = x[:2], x[4:5], x[5:8]
        inputs = [*inputs, np.array([2, 5, 9], np.int32)]
        _check_on(device, "VarlenCausalConvWithState", inputs, [*expected, captured], state_update_capacity=3)


@pytest.mark.parametrize("device", DEVICES)
def test_a_state_holds_states_of_one_size(device: str) -> None:
    """A layer with a convolution and a recurrence, and one with a window of keys: chunks equal runs by hand."""
    graph = weft.Graph("hybrid")
    x = graph.input("x", ("batch_size", "sequence_length", HEADS * 8), "float32")
    gate = graph.input("gate", ("batch_size", "sequence_length", HEADS), "float32")
    lasts = graph.input("seqlens_k", ("batch_size",), "int32")
    total = graph.input("total_sequence_length", (), "int32")
    conv = graph.input("past_key_values.0.conv_state", ("batch_size", 3, HEADS * 8), "float32")
    recurrent = graph.input("past_key_values.0.recurrent_state", ("batch_size", HEADS, 8, 8), "float32")
    keys, values = (
        graph.input(f"past_key_values.1.{kind}", ("batch_size", HEADS, 6, 8), "float32") for kind in ("key", "value")
    )
    weight = graph.parameter("weight", random_array(0, (HEADS * 8, 1, 4), low=-1, high=1))
    y, new_conv = weft.ops.microsoft.causal_conv_with_state(x, weight, None, conv, channels_last=1, activation="silu")
    heads = weft.ops.reshape(y, np.array([0, 0, HEADS, 8]))
    z, new_recurrent = weft.ops.microsoft.gated_delta_net(
        heads,
        heads,
        heads,
        None,
        -weft.ops.abs(gate),
        gate,
        recurrent,
        beta_activation="sigmoid",
        qk_l2_norm=1,
        outputs=2,
    )
    z = weft.ops.reshape(z, np.array([0, 0, HEADS * 8]))
    result, new_keys, new_values = weft.ops.microsoft.group_query_attention(
        z, z, z, keys, values, lasts, total, num_heads=HEADS, kv_num_heads=HEADS,
        local_window_size=4, sliding_window_cache=1, outputs=3,
    )  # fmt: skip
    for tensor, name in (
        (result, "y"),
        (new_conv, "present.0.conv_state"),
        (new_recurrent, "present.0.recurrent_state"),
        (new_keys, "present.1.key"),
        (new_values, "present.1.value"),
    ):
        graph.output(tensor, name)
    model = weft.load(graph.to_onnx(), device=device)
    inputs = {"x": random_array(1, (1, 14, HEADS * 8)), "gate": random_array(2, (1, 14, HEADS))}
    shapes = {"conv_state": (1, 3, HEADS * 8), "recurrent_state": (1, HEADS, 8, 8)}
    past = {f"past_key_values.0.{name}": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    past |= {f"past_key_values.1.{name}": np.zeros((1, HEADS, 6, 8), np.float32) for name in ("key", "value")}

    def feed(start: int, end: int) -> dict[str, Array]:
        part = {name: array[:, start:end] for name, array in inputs.items()}
        return part | {"seqlens_k": np.array([end - 1], np.int32), "total_sequence_length": np.array(end, np.int32)}

    whole = model.run(feed(0, 14) | past)["y"]
    state = model.state()
    results, start = [], 0
    for count in (5, 1, 1, 6, 1):
        results.append(model.run(feed(start, start + count), state=state)["y"])
        start += count
    if device == "reference":  # numpy adds up keys in an order that depends on their number
        np.testing.assert_allclose(np.concatenate(results, 1), whole, **CLOSE)
    else:
        np.testing.assert_array_equal(np.concatenate(results, 1), whole)
