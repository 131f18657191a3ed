"""Recurrent layers: the input's part of the gates is one product for all steps, the rest is a scan along time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.flow import scan
from weft.opset.functions import absolute, cast, clamp, exp, log1p, maximum, sigmoid, tanh, where, wide_dtype
from weft.opset.language import (
    Element,
    Tensor,
    assume_equal,
    build,
    check_range,
    contract,
    flip,
    full,
    stack,
    transpose,
)
from weft.opset.registry import op, require
from weft.records import dataclass

DIRECTIONS = ("forward", "reverse", "bidirectional")
LSTM_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")

Activation = Callable[[Element], Element]
Step = Callable[[Tensor, Sequence[Tensor]], list[Tensor]]  # gates [batch, all], states -> states, the output first


@dataclass(frozen=True, slots=True)
class Layer:
    """The inputs of a recurrent layer, with time as the first axis and everything in a wide dtype."""

    x: Tensor
    weights: Tensor
    recurrence: Tensor
    bias: Tensor | None
    lengths: Tensor | None
    hidden: Dim
    gates: int
    direction: str
    batch_first: bool
    dtype: DType

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def batch(self) -> Dim:
        return self.x.shape[1]


@dataclass(frozen=True, slots=True)
class Products:
    """Products with the weights of a direction, for weights that are not floats."""

    project: Callable[[Tensor, int], Tensor]  # [time, batch, inputs] -> [time, batch, gates]
    feed_back: Callable[[Tensor, int], Tensor]  # [batch, hidden] -> [batch, gates]


def make_layer(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    *,
    gates: int,
    direction: str,
    layout: int,
    hidden_size: int | None,
) -> Layer:
    require(direction in DIRECTIONS, f"direction is {direction!r}", f"it must be one of {', '.join(DIRECTIONS)}")
    require(x.rank == w.rank == r.rank == 3, f"shapes {x.type}, {w.type} and {r.type} must have rank 3")
    hidden = r.shape[2] if hidden_size is None else hidden_size
    wide = wide_dtype(x.dtype)
    x = transpose(x, (1, 0, 2)) if layout else x
    if lengths is not None:
        require(lengths.rank == 1, f"sequence_lens must have one dimension, not {lengths.rank}")
        assume_equal(lengths.shape[0], x.shape[1], "one length for each sequence")
        lengths = check_range(lengths, 0, x.shape[0], "sequence_lens")
    elementwise_wide = None if b is None else cast(b, wide)
    layer = Layer(
        cast(x, wide),
        cast(w, wide),
        cast(r, wide),
        elementwise_wide,
        lengths,
        hidden,
        gates,
        direction,
        bool(layout),
        x.dtype,
    )
    assume_equal(r.shape[2], hidden, "the recurrence must fit the hidden size")
    for tensor in (w, r):
        assume_equal(tensor.shape[0], layer.directions, f"weights for direction {direction!r}")
        assume_equal(tensor.shape[1], hidden * gates, f"the weights of {gates} gates")
    return layer


def _run_layer(
    layer: Layer,
    initial: Sequence[Tensor | None],
    step: Callable[[int], Step],
    bias_in_step: int = 0,
    products: Products | None = None,
) -> list[Tensor]:
    """Return the outputs of all steps, then the last of each state; the first state is the output.

    The recurrent bias of the last `bias_in_step` gates is added by the step.
    """
    outputs, final_states = [], []
    for number in range(layer.directions):
        states = [_prepare_state(layer, state, number) for state in initial]
        sequence = _project(layer, number, bias_in_step, products)
        backward = layer.direction == "reverse" or number == 1
        final, output = _scan_time(layer, _reverse(layer, sequence) if backward else sequence, states, step(number))
        outputs.append(_reverse(layer, output) if backward else output)
        final_states.append(final)
    stacked_outputs = stack(outputs, 1)
    last_states = [stack(list(states), 0) for states in zip(*final_states)]
    if layer.batch_first:
        stacked_outputs = transpose(stacked_outputs, (2, 0, 1, 3))
        last_states = [transpose(state, (1, 0, 2)) for state in last_states]
    return [cast(tensor, layer.dtype) for tensor in (stacked_outputs, *last_states)]


def _scan_time(layer: Layer, sequence: Tensor, states: list[Tensor], step: Step) -> tuple[list[Tensor], Tensor]:
    lengths = layer.lengths
    if lengths is None:

        def plain_step(*inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
            new = step(inputs[-1], inputs[:-1])
            return new, new[:1]

        finals, outputs = scan(plain_step, states, [sequence])
        return finals, outputs[0]

    def bounded_step(*inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        *old, gates, time = inputs
        new = step(gates, old)

        def is_running(b: Element) -> Element:
            return time.at() < cast(lengths.at(b), DType.int64)

        def update(before: Tensor, after: Tensor) -> Tensor:
            return build(before.shape, lambda b, h: where(is_running(b), after.at(b, h), before.at(b, h)))

        output = build(new[0].shape, lambda b, h: where(is_running(b), new[0].at(b, h), 0.0))
        return [update(before, after) for before, after in zip(old, new)], [output]

    finals, outputs = scan(bounded_step, states, [sequence, build(sequence.shape[:1], lambda t: t)])
    return finals, outputs[0]


def _project(layer: Layer, number: int, bias_in_step: int, products: Products | None) -> Tensor:
    """Compute the input's part of all gates, [time, batch, gates * hidden], with the biases."""
    if products is None:
        product = contract(layer.x, _take_direction(layer.weights, number), "tbi", "gi", "tbg")
    else:
        product = products.project(layer.x, number)
    bias = layer.bias
    if bias is None:
        return product
    size = layer.hidden * layer.gates
    assume_equal(bias.shape[1], size * 2, "two biases per gate")
    early = layer.hidden * (layer.gates - bias_in_step)

    def element(t: Element, b: Element, g: Element) -> Element:
        recurrent = bias.at(number, g + size)
        if bias_in_step:
            recurrent = where(g < early, recurrent, 0.0)
        return product.at(t, b, g) + (bias.at(number, g) + recurrent)

    return build(product.shape, element)


def _reverse(layer: Layer, sequence: Tensor) -> Tensor:
    """Reverse each sequence; padding stays at the end."""
    lengths = layer.lengths
    if lengths is None:
        return flip(sequence, 0)

    def element(t: Element, b: Element, i: Element) -> Element:
        length = cast(lengths.at(b), DType.int64)
        return sequence.at(where(t < length, length - 1 - t, t), b, i)

    return build(sequence.shape, element)


def _prepare_state(layer: Layer, state: Tensor | None, number: int) -> Tensor:
    shape = (layer.batch, layer.hidden)
    if state is None:
        return full(shape, 0.0, layer.x.dtype)
    require(state.rank == 3, f"an initial state of {state.type}")
    state = transpose(state, (1, 0, 2)) if layer.batch_first else state
    for size, expected in zip(state.shape, (layer.directions, *shape)):
        assume_equal(size, expected, "the shape of an initial state")
    return build(shape, lambda b, h: cast(state.at(number, b, h), layer.x.dtype))


def _take_direction(x: Tensor, number: int) -> Tensor:
    """Take the weights or biases of one direction."""
    return build(x.shape[1:], lambda *i: x.at(number, *i))


# -- activations -----------------------------------------------------------------------------------------------------

# name -> its parameters with their defaults, and its function
_ACTIVATIONS: dict[str, tuple[dict[str, float], Callable[..., Any]]] = {
    "relu": ({}, lambda x: maximum(x, 0.0)),
    "tanh": ({}, tanh),
    "sigmoid": ({}, sigmoid),
    "affine": ({"alpha": 1.0, "beta": 0.0}, lambda x, alpha, beta: x * alpha + beta),
    "leakyrelu": ({"alpha": 0.01}, lambda x, alpha: where(x >= 0.0, x, x * alpha)),
    "thresholdedrelu": ({"alpha": 1.0}, lambda x, alpha: where(x >= alpha, x, 0.0)),
    "scaledtanh": ({"alpha": 1.0, "beta": 1.0}, lambda x, alpha, beta: tanh(x * beta) * alpha),
    "hardsigmoid": ({"alpha": 0.2, "beta": 0.5}, lambda x, alpha, beta: clamp(x * alpha + beta, 0.0, 1.0)),
    "elu": ({"alpha": 1.0}, lambda x, alpha: where(x >= 0.0, x, (exp(x) - 1.0) * alpha)),
    "softsign": ({}, lambda x: x / (absolute(x) + 1.0)),
    "softplus": ({}, lambda x: maximum(x, 0.0) + log1p(exp(-absolute(x)))),
}


def choose_activations(
    names: Sequence[str] | None,
    defaults: Sequence[str],
    directions: int,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    clip: float | None,
) -> list[list[Activation]]:
    """Return the activations of each direction; each takes as many of the node's alphas and betas, in order, as it has.

    Only gates are clipped: the first two activations of a direction. A third one is applied to the cell for the output.
    """
    needed = len(defaults) * directions
    chosen = list(names or list(defaults) * directions)[:needed]
    require(len(chosen) == needed, f"there are {len(chosen)} activations, {needed} are needed")
    unused = {"alpha": list(alphas or ()), "beta": list(betas or ())}
    functions = []
    for position, name in enumerate(chosen):
        require(name.lower() in _ACTIVATIONS, f"activation {name!r} does not exist")
        parameters, function = _ACTIVATIONS[name.lower()]
        values = [unused[kind].pop(0) if unused[kind] else default for kind, default in parameters.items()]
        functions.append(_bind_activation(function, values, clip if position % len(defaults) < 2 else None))
    return [functions[i : i + len(defaults)] for i in range(0, needed, len(defaults))]


def _bind_activation(function: Callable[..., Any], values: Sequence[float], clip: float | None) -> Activation:
    if clip is None:
        return lambda x: function(x, *values)
    return lambda x: function(clamp(x, -clip, clip), *values)


# -- the layers ------------------------------------------------------------------------------------------------------


@op("RNN", outputs=(2, 2))
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output_sequence: int = 0,
) -> list[Tensor]:
    layer = make_layer(x, w, r, b, sequence_lens, gates=1, direction=direction, layout=layout, hidden_size=hidden_size)
    chosen = choose_activations(activations, ["Tanh"], layer.directions, activation_alpha, activation_beta, clip)

    def direction_step(number: int) -> Step:
        (activate,), recurrence = chosen[number], _take_direction(layer.recurrence, number)

        def step(gates: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
            fed_back = contract(states[0], recurrence, "bh", "gh", "bg")
            return [build(states[0].shape, lambda b, h: activate(gates.at(b, h) + fed_back.at(b, h)))]

        return step

    return _run_layer(layer, [initial_h], direction_step)


@op("GRU", outputs=(2, 2))
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> list[Tensor]:
    layer = make_layer(x, w, r, b, sequence_lens, gates=3, direction=direction, layout=layout, hidden_size=hidden_size)
    chosen = choose_activations(
        activations, ["Sigmoid", "Tanh"], layer.directions, activation_alpha, activation_beta, clip
    )

    def direction_step(number: int) -> Step:
        if linear_before_reset:
            return _gru_reset_after(layer, number, chosen[number])
        return _gru_reset_before(layer, number, chosen[number])

    return _run_layer(layer, [initial_h], direction_step, bias_in_step=1 if linear_before_reset else 0)


def _gru_reset_before(layer: Layer, number: int, activations: Sequence[Activation]) -> Step:
    """The reset gate scales the state before its product with the hidden gate's weights."""
    hidden, recurrence = layer.hidden, _take_direction(layer.recurrence, number)
    activate, activate_hidden = activations
    early = build((hidden * 2, hidden), lambda g, h: recurrence.at(g, h))
    late = build((hidden, hidden), lambda g, h: recurrence.at(g + hidden * 2, h))

    def step(gates: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        old = states[0]
        fed_back = contract(old, early, "bh", "gh", "bg")
        reset = build(
            old.shape,
            lambda b, h: activate(gates.at(b, h + hidden) + fed_back.at(b, h + hidden)) * old.at(b, h),
        )
        inner = contract(reset, late, "bh", "gh", "bg")

        def new_state(b: Element, h: Element) -> Element:
            update = activate(gates.at(b, h) + fed_back.at(b, h))
            candidate = activate_hidden(gates.at(b, h + hidden * 2) + inner.at(b, h))
            return (1.0 - update) * candidate + update * old.at(b, h)

        return [build(old.shape, new_state)]

    return step


def _gru_reset_after(layer: Layer, number: int, activations: Sequence[Activation]) -> Step:
    """The reset gate scales the product with the hidden gate's weights, its bias included."""
    hidden, recurrence, bias = layer.hidden, _take_direction(layer.recurrence, number), layer.bias
    activate, activate_hidden = activations

    def step(gates: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        old = states[0]
        fed_back = contract(old, recurrence, "bh", "gh", "bg")

        def new_state(b: Element, h: Element) -> Element:
            update = activate(gates.at(b, h) + fed_back.at(b, h))
            reset = activate(gates.at(b, h + hidden) + fed_back.at(b, h + hidden))
            inner = fed_back.at(b, h + hidden * 2)
            if bias is not None:
                inner = inner + bias.at(number, h + hidden * 5)
            candidate = activate_hidden(gates.at(b, h + hidden * 2) + reset * inner)
            return (1.0 - update) * candidate + update * old.at(b, h)

        return [build(old.shape, new_state)]

    return step


@op("LSTM", outputs=(3, 3))
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    output_sequence: int = 0,
) -> list[Tensor]:
    layer = make_layer(x, w, r, b, sequence_lens, gates=4, direction=direction, layout=layout, hidden_size=hidden_size)
    chosen = choose_activations(
        activations, LSTM_ACTIVATIONS, layer.directions, activation_alpha, activation_beta, clip
    )
    return run_lstm(layer, [initial_h, initial_c], p, chosen, coupled=bool(input_forget))


def run_lstm(
    layer: Layer,
    initial: Sequence[Tensor | None],
    p: Tensor | None,
    activations: Sequence[Sequence[Activation]],
    *,
    coupled: bool,
    products: Products | None = None,
) -> list[Tensor]:
    """Compute an LSTM's outputs and last states."""
    if p is not None:
        assume_equal(p.shape[1], layer.hidden * 3, "three peepholes per unit")
        p = cast(p, layer.x.dtype)

    def direction_step(number: int) -> Step:
        peepholes = None if p is None else _take_direction(p, number)
        return _lstm_step(layer, number, activations[number], peepholes, coupled, products)

    return _run_layer(layer, initial, direction_step, products=products)


def _lstm_step(
    layer: Layer,
    number: int,
    activations: Sequence[Activation],
    peepholes: Tensor | None,
    coupled: bool,
    products: Products | None,
) -> Step:
    """Gates in the order input, output, forget, cell; peepholes in the order input, output, forget."""
    hidden, recurrence = layer.hidden, _take_direction(layer.recurrence, number)
    activate, activate_cell, activate_output = activations

    def step(gates: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        output, cell = states
        if products is None:
            fed_back = contract(output, recurrence, "bh", "gh", "bg")
        else:
            fed_back = products.feed_back(output, number)

        def gate(position: int, b: Element, h: Element, peephole_cell: Tensor | None) -> Element:
            column = h + hidden * position
            total = gates.at(b, column) + fed_back.at(b, column)
            if peephole_cell is not None and peepholes is not None:
                total = total + peepholes.at(column) * peephole_cell.at(b, h)
            return total

        def compute_cell(b: Element, h: Element) -> Element:
            input_gate = activate(gate(0, b, h, cell))
            forget_gate = 1.0 - input_gate if coupled else activate(gate(2, b, h, cell))
            return forget_gate * cell.at(b, h) + input_gate * activate_cell(gate(3, b, h, None))

        new_cell = build(cell.shape, compute_cell)
        new_output = build(
            cell.shape, lambda b, h: activate(gate(1, b, h, new_cell)) * activate_output(new_cell.at(b, h))
        )
        return [new_output, new_cell]

    return step
