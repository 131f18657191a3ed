"""Forms that say less about shapes: names for sizes, nothing for sizes, nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import onnx
from attack.forms.sample import Results, Sample, with_model

from weft.errors import WeftError
from weft.loading import load

Dim = "str | int | None"
ODD_NAMES = ("", " ", "8", "-1", "s_input_0", "n*2", "batch size", "größe", "n" * 500, "floor(x)", "%0", "a\nb", "?")


def distinct(sample: Sample) -> Sample | None:
    """Every size has a name of its own; the outputs say nothing."""
    numbers = count()
    return _declare(sample, lambda _: f"n{next(numbers)}", outputs=None)


def inputs_only(sample: Sample) -> Sample | None:
    """Every size of the inputs has a name of its own, the outputs stay as they are."""
    numbers = count()
    return _declare(sample, lambda _: f"n{next(numbers)}", outputs=...)


def shared(sample: Sample) -> Sample | None:
    """Equal sizes have one name, in the outputs as well."""
    name: Callable[[int], str] = lambda size: f"n{size}"  # noqa: E731
    return _declare(sample, name, outputs=name)


def first_axis(sample: Sample) -> Sample | None:
    """The first size of each input is a batch."""

    def declare(dims: Any) -> None:
        if dims:
            dims[0].dim_param = "batch"

    return _edit_shapes(sample, declare)


def odd_names(sample: Sample) -> Sample | None:
    """Sizes have names that a compiler could take for something else."""
    numbers = count()

    def name(_: int) -> str:
        number = next(numbers)
        return ODD_NAMES[number % len(ODD_NAMES)] + "'" * (number // len(ODD_NAMES))

    return _declare(sample, name, outputs=None)


def open_sizes(sample: Sample) -> Sample | None:
    """Ranks are known, sizes are not."""
    return _declare(sample, lambda _: None, outputs=None)


def open_ranks(sample: Sample) -> Sample | None:
    """Not even ranks are known."""
    if not sample.tensors:
        return None
    result = with_model(sample)
    for value in (*result.model.graph.input, *result.model.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return result


def other_sizes_first(sample: Sample) -> Sample | None:
    """Every size has a name, and a run with other sizes comes before: whatever it gives, it leaves nothing behind."""
    distinct_sample = distinct(sample)
    return None if distinct_sample is None else replace(distinct_sample, call=_run_larger_first)


def _run_larger_first(sample: Sample, device: str) -> Results:
    model = load(sample.model, device=device)
    for axis in range(max(array.ndim for array in sample.tensors.values())):
        larger = {
            name: value.repeat(2, axis) if name in sample.tensors and axis < value.ndim else value
            for name, value in sample.inputs.items()
        }
        try:
            model.run(larger)
        except WeftError as error:
            if not _is_ours_to_raise(error):
                raise
    results: Results = model.run(sample.inputs)
    return results


def _is_ours_to_raise(error: WeftError) -> bool:
    return type(error).__name__ != "InternalError"


def _declare(sample: Sample, name: Callable[[int], str | None], outputs: Any) -> Sample | None:
    """Declare sizes of inputs as `name` says; outputs likewise, or left (...), or without a shape (None)."""

    def declare(dims: Any) -> None:
        for dim in dims:
            dim_name = name(dim.dim_value)
            dim.Clear()
            if dim_name is not None:
                dim.dim_param = dim_name

    result = _edit_shapes(sample, declare)
    if result is None or outputs is ...:
        return result
    for value in result.model.graph.output:
        if value.type.HasField("tensor_type"):
            if outputs is None:
                value.type.tensor_type.ClearField("shape")
            else:
                declare(value.type.tensor_type.shape.dim)
    return result


def _edit_shapes(sample: Sample, edit: Callable[[Any], None]) -> Sample | None:
    if not any(array.ndim for array in sample.tensors.values()):
        return None
    result = with_model(sample)
    for value in _with_shapes(result.model.graph):
        edit(value.type.tensor_type.shape.dim)
    return result


def _with_shapes(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    return (value for value in graph.input if value.type.tensor_type.HasField("shape"))
