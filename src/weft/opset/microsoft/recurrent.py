"""LSTMs with 8-bit weights, whose inputs and outputs are quantized on the way to each product."""

from __future__ import annotations

from typing import Any

from weft.ir.dtypes import DType
from weft.opset.functions import cast
from weft.opset.language import Element, Tensor, build
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.scales import dequantized
from weft.opset.quantization import centered, dynamic_quantize_linear
from weft.opset.recurrent import LSTM_ACTIVATIONS, choose_activations, make_layer, run_lstm
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
        _as_quantized(x),
        _gates_first(w, w_scale, w_zero_point),
        _gates_first(r, r_scale, r_zero_point),
        b,
        sequence_lens,
        gates=4,
        direction=direction,
        layout=0,
        hidden_size=hidden_size,
    )
    given = activation_alpha, activation_beta, clip
    chosen = choose_activations(activations, LSTM_ACTIVATIONS, layer.directions, *given)
    return run_lstm(layer, [initial_h, initial_c], p, chosen, coupled=bool(input_forget), feed=_as_quantized)


def _as_quantized(x: Tensor) -> Tensor:
    """x as it is after quantization to uint8, as a whole, and back."""
    numbers, scale, zero_point = dynamic_quantize_linear(x)
    return dequantized(numbers, scale, zero_point)


def _gates_first(w: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """[directions, gates, inputs] in float32 from the 8-bit [directions, inputs, gates].

    Scales and zero points are of a direction, or of each of its gates.
    """
    require(w.rank == 3 and scale.rank in (1, 2), f"weights {w.type} with scales {scale.type}")
    directions, inputs, gates = w.shape

    def element(d: Element, g: Element, i: Element) -> Any:
        place = (d,) if scale.rank == 1 else (d, g)
        moved = centered(w.at(d, i, g), zero_point.at(*place[: zero_point.rank]))
        return cast(moved, DType.float32) * scale.at(*place)

    return build((directions, gates, inputs), element)
