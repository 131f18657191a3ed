"""LSTMs with 8-bit weights, which quantize the inputs of each product."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.opset.functions import cast
from weft.opset.language import Element, Tensor, build, contract, elementwise
from weft.opset.microsoft.domain import op
from weft.opset.quantization import dynamic_quantize_linear, subtract_zero_point
from weft.opset.recurrent import LSTM_ACTIVATIONS, Products, choose_activations, make_layer, run_lstm
from weft.opset.registry import require


@op("DynamicQuantizeLSTM", outputs=(3, 3))
def dynamic_quantize_lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    p: Tensor | None,
    w_scale: Tensor,
    w_zero_point: Tensor,
    r_scale: Tensor,
    r_zero_point: Tensor,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> list[Tensor]:
    layer = make_layer(
        x,
        _dequantize_gates_first(w, w_scale, w_zero_point),
        _dequantize_gates_first(r, r_scale, r_zero_point),
        b,
        sequence_lens,
        gates=4,
        direction=direction,
        layout=0,
        hidden_size=hidden_size,
    )
    chosen = choose_activations(
        activations, LSTM_ACTIVATIONS, layer.directions, activation_alpha, activation_beta, clip
    )
    products = Products(
        lambda inputs, number: _multiply_quantized(inputs, w, w_scale, w_zero_point, number, "tbi"),
        lambda output, number: _multiply_quantized(output, r, r_scale, r_zero_point, number, "bi"),
    )
    return run_lstm(layer, [initial_h, initial_c], p, chosen, coupled=bool(input_forget), products=products)


def _multiply_quantized(x: Tensor, w: Tensor, scale: Tensor, zero_point: Tensor, number: int, labels: str) -> Tensor:
    """Quantize x to uint8 and multiply by the weights [inputs, gates] of a direction, with int32 sums, scaled once."""
    numbers, own_scale, own_zero = dynamic_quantize_linear(x)
    bytes_ = build(w.shape[1:], lambda i, g: w.at(number, i, g))

    def parameter_at(parameter: Tensor, *indices: Element) -> Element:
        return parameter.at(number, *indices[: parameter.rank - 1])

    right = build(bytes_.shape, lambda i, g: subtract_zero_point(bytes_.at(i, g), parameter_at(zero_point, g)))
    sums = contract(elementwise(subtract_zero_point, numbers, own_zero), right, labels, "ig", labels[:-1] + "g")

    def element(*indices: Element) -> Element:
        return cast(sums.at(*indices), DType.float32) * (own_scale.at() * parameter_at(scale, indices[-1]))

    return build(sums.shape, element)


def _dequantize_gates_first(w: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Dequantize [directions, inputs, gates] to float32 [directions, gates, inputs].

    There are scales and zero points per direction, or per direction and gate.
    """
    require(w.rank == 3 and scale.rank in (1, 2), f"weights {w.type} with scales {scale.type}")
    directions, inputs, gates = w.shape

    def element(d: Element, g: Element, i: Element) -> Element:
        indices = (d,) if scale.rank == 1 else (d, g)
        centred = subtract_zero_point(w.at(d, i, g), zero_point.at(*indices[: zero_point.rank]))
        return cast(centred, DType.float32) * scale.at(*indices)

    return build((directions, gates, inputs), element)
