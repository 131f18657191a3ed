"""Fourier transforms, windows, and the mel scale. Complex numbers are pairs along a last dimension of size 2."""

from __future__ import annotations

from math import pi

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType, from_number
from weft.opset.fourier import fit, transform
from weft.opset.functions import cast, cos, equal, exp, floor, log1p, where
from weft.opset.language import (
    Element,
    Tensor,
    assume_at_least,
    assume_equal,
    build,
    expand_dims,
    index,
    observe,
    reshape,
    slice_axis,
    transpose,
)
from weft.opset.registry import ElementType, Sizes, Static, normalize_axis, op, require


@op("DFT", since=17)
def dft_17(x: Tensor, length: Sizes | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0) -> Tensor:
    return _dft(x, length, axis, inverse=bool(inverse), onesided=bool(onesided))


@op("DFT", since=20)
def dft_20(
    x: Tensor, length: Sizes | None = None, axis: Static | None = None, *, inverse: int = 0, onesided: int = 0
) -> Tensor:
    chosen = -2 if axis is None else int(axis.item())
    return _dft(x, length, chosen, inverse=bool(inverse), onesided=bool(onesided))


def _dft(x: Tensor, length: tuple[Dim, ...] | None, axis: int, *, inverse: bool, onesided: bool) -> Tensor:
    axis = normalize_axis(axis, x.rank)
    require(axis != x.rank - 1, "the last axis holds real and imaginary parts and cannot be transformed")
    size = x.shape[axis]
    count = length[0] if length else 2 * (size - 1) if inverse and onesided else size
    order = [*(a for a in range(x.rank) if a not in (axis, x.rank - 1)), axis, x.rank - 1]
    last = transpose(x, order)
    rows = reshape(last, (dims.product(last.shape[:-2]), *last.shape[-2:]))
    if inverse and onesided:
        result = slice_axis(transform(_complete_spectrum(rows, count), count, inverse=True), 2, 0, 1)
    else:
        bins = dims.floordiv(count, 2) + 1 if onesided else None
        result = transform(fit(rows, 1, count), count, inverse=inverse, bins=bins)
    result = reshape(result, (*last.shape[:-2], *result.shape[1:]))
    return transpose(result, [order.index(a) for a in range(x.rank)])


def _complete_spectrum(half: Tensor, count: Dim) -> Tensor:
    """Complete the spectrum of a real signal: its second half mirrors the conjugate of the first."""
    bins = dims.floordiv(count, 2) + 1
    half = fit(fit(half, 1, bins), 2, 2)

    def element(row: Element, k: Element, part: Element) -> Element:
        mirrored = half.at(row, count - k, part)
        conjugate = where(equal(part, 0), mirrored, -mirrored)
        return where(k < bins, half.at(row, k, part), conjugate)

    return build((half.shape[0], count, 2), element)


@op("STFT", since=17)
def stft(
    signal: Tensor,
    frame_step: Sizes,
    window: Tensor | None = None,
    frame_length: Sizes | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    require(signal.rank in (2, 3), f"the signal must have rank 3, or 2 if it is real, not {signal.rank}")
    signal = expand_dims(signal, [2]) if signal.rank == 2 else signal
    batch, length, parts = signal.shape
    step = frame_step[0]
    require(not isinstance(step, int) or step > 0, f"frame_step must be positive, not {step}")
    assume_at_least(step, 1, "a frame_step")
    size = frame_length[0] if frame_length else length if window is None else window.shape[0]
    if window is not None:
        assume_equal(window.shape[0], size, "the window must be as long as a frame")
    assume_at_least(size, 1, "a frame_length")
    assume_at_least(length, size, "a signal must be as long as a frame")
    count = dims.floordiv(length - size, step) + 1

    def element(b: Element, frame: Element, i: Element, part: Element) -> Element:
        sample = signal.at(b, frame * step + i, part)
        return sample if window is None else sample * window.at(i)

    frames = reshape(build((batch, count, size, parts), element), (batch * count, size, parts))
    result = transform(frames, size, inverse=False, bins=dims.floordiv(size, 2) + 1 if onesided else None)
    return reshape(result, (batch, count, *result.shape[1:]))


# -- windows ---------------------------------------------------------------------------------------------------------


@op("HannWindow", since=17)
def hann_window(size: Sizes, *, periodic: int = 1, output_datatype: ElementType = 1) -> Tensor:
    return _cosine_window(size, periodic, output_datatype, (0.5, -0.5))


@op("HammingWindow", since=17)
def hamming_window(size: Sizes, *, periodic: int = 1, output_datatype: ElementType = 1) -> Tensor:
    return _cosine_window(size, periodic, output_datatype, (25.0 / 46.0, -21.0 / 46.0))


@op("BlackmanWindow", since=17)
def blackman_window(size: Sizes, *, periodic: int = 1, output_datatype: ElementType = 1) -> Tensor:
    return _cosine_window(size, periodic, output_datatype, (0.42, -0.5, 0.08))


def _cosine_window(size: tuple[Dim, ...], periodic: int, output_datatype: int, factors: tuple[float, ...]) -> Tensor:
    """Sum cosines with 0, 1, 2, ... periods over the window."""
    require(len(size) == 1, f"the window's size must be one number, not {len(size)}")
    period = size[0] if periodic else size[0] - 1

    def element(i: Element) -> Element:
        angle = cast(i, DType.float64) * (2.0 * pi) / cast(index(period), DType.float64)
        total = cos(angle) * factors[1] + factors[0]
        for periods, factor in enumerate(factors[2:], start=2):
            total = total + cos(angle * float(periods)) * factor
        return total

    return build((size[0],), element, from_number(output_datatype))


# -- the mel scale ---------------------------------------------------------------------------------------------------

MEL_FACTOR = 1127.0104803341575  # 2595 / ln(10)
MEL_BREAK_HERTZ = 700.0


@op("MelWeightMatrix", since=17)
def mel_weight_matrix(
    num_mel_bins: Sizes,
    dft_length: Sizes,
    sample_rate: Sizes,
    lower_edge_hertz: Tensor,
    upper_edge_hertz: Tensor,
    *,
    output_datatype: ElementType = 1,
) -> Tensor:
    bands, length = num_mel_bins[0], dft_length[0]
    require(not isinstance(length, int) or length >= 0, f"dft_length must not be negative, not {length}")
    assume_at_least(length, 0, "a dft_length")
    assume_at_least(sample_rate[0], 1, "a sample_rate")
    edges = _mel_edges(bands, length, sample_rate[0], _scalar(lower_edge_hertz), _scalar(upper_edge_hertz))
    last = dims.floordiv(length, 2)
    (fits,) = observe(build((), lambda: where((edges.at(0) >= 0) & (edges.at(bands + 1) <= last), index(1), 0)), "fits")
    spectrum = f"{last + 1} bins at a sample_rate of {sample_rate[0]}"
    require(fits != 0, f"lower_edge_hertz or upper_edge_hertz lies outside of the spectrum of {spectrum}")
    assume_at_least(fits, 1, "the frequencies must lie in the spectrum")

    def element(j: Element, band: Element) -> Element:
        low, centre, high = (edges.at(band + offset) for offset in range(3))
        rising = where((j >= low) & (j <= centre), _ratio(j - low, centre - low), 0.0)
        rising = where(equal(low, centre), cast(equal(j, centre), DType.float64), rising)
        falling = (j >= centre) & (j < high)
        return where(falling, _ratio(high - j, high - centre), rising)

    return build((dims.floordiv(length, 2) + 1, bands), element, from_number(output_datatype))


def _mel_edges(bands: Dim, length: Dim, rate: Dim, lower: Tensor, upper: Tensor) -> Tensor:
    """Compute the bins where the triangles begin, peak and end: evenly spaced on the mel scale."""

    def element(i: Element) -> Element:
        low, high = (log1p(edge.at() / MEL_BREAK_HERTZ) * MEL_FACTOR for edge in (lower, upper))
        mel = cast(i, DType.float64) * ((high - low) / cast(index(bands + 2), DType.float64)) + low
        hertz = (exp(mel / MEL_FACTOR) - 1.0) * MEL_BREAK_HERTZ
        return floor(cast(index(length + 1), DType.float64) * hertz / cast(index(rate), DType.float64))

    return build((bands + 2,), element, DType.int64)


def _scalar(x: Tensor) -> Tensor:
    return reshape(cast(x, DType.float64), ())


def _ratio(a: Element, b: Element) -> Element:
    return cast(a, DType.float64) / cast(b, DType.float64)
