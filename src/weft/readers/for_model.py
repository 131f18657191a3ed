"""`weft.read_inputs`: read files as the inputs of a loaded model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np

from weft.errors import InputError, short_repr
from weft.ir.dtypes import DType
from weft.ir.types import OptionalType
from weft.logs import INPUTS
from weft.readers import arrays
from weft.readers.audio import read_audio
from weft.readers.content import DataSource, Kind, find_source
from weft.readers.derived_inputs import choose_rate, derive_input, is_rate, main_inputs
from weft.readers.images import COLOURS, RESIZES, ImageOptions
from weft.readers.read import InputContext, Reading, read_input

if TYPE_CHECKING:
    from weft.ir.specs import TensorSpec
    from weft.runtime.model import Model

FilePath = Union[str, "PathLike[str]"]


def read_inputs(
    model: Model,
    source: FilePath | Sequence[FilePath] | Mapping[str, Any],
    *,
    scale: float | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layout: str | None = None,
    resize: Literal["crop", "fit", "stretch"] | None = None,
    colours: Literal["rgb", "bgr", "grey"] | None = None,
    rate: int | None = None,
) -> dict[str, Any]:
    """Read files as inputs, as `weft run` does: `model.run(weft.read_inputs(model, "photo.jpg"))`.

    Images are rotated, cropped, resized and normalized, audio is mixed and resampled, as the model's inputs and
    metadata suggest (docs/guides/inputs.md); the logger `weft.inputs` says how. Inputs that follow from others, such as
    lengths, masks and initial states, are filled in.

    source: a file for the model's main input, a list of images, which make a batch, or a dict of files, lists of files,
        arrays, numbers and texts by the names of inputs.
    scale: factor for pixels from 0 to 255; mean and std: subtracted then, and divided by.
    layout: the dims of an image input, for instance "NCHW".
    resize: "crop" takes the centre, "fit" keeps everything and pads with grey, "stretch" changes the aspect ratio.
    colours: the order of channels, "rgb" or "bgr", or "grey".
    rate: the sampling rate that audio is resampled to.
    """
    images = ImageOptions(
        None if scale is None else float(scale),
        _check_numbers("mean", mean),
        _check_numbers("std", std),
        None if layout is None else _check_layout(layout),
        _check_choice("resize", resize, RESIZES),
        _check_choice("colours", colours, COLOURS),
    )
    sizes: dict[str, int] = {}
    specs = {spec.name: spec for spec in (*model.inputs, *model.defaults)}
    sources = _assign_sources(model, source)
    readings: dict[str, Reading] = {}
    for name in sorted(sources, key=lambda name: _is_audio(sources[name])):
        if name not in specs:
            raise InputError(f"there is no input {name!r}", file=model.file, hint=f"there are {', '.join(specs)}")
        context = InputContext(lambda: model.source, model.outputs, images, sizes, rate)
        if rate is None and _is_audio(sources[name]):
            context = replace(context, rate=_find_rate(readings, specs, sources[name], context))
        readings[name] = _read_source(specs[name], sources[name], context)
        rate = rate or readings[name].rate
        for dim, size in zip(specs[name].shape or (), readings[name].array.shape):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
        if readings[name].note:
            INPUTS.info("input %s: %s", name, readings[name].note)
    inputs = {name: reading.array for name, reading in readings.items()}
    for spec in model.inputs:
        if spec.name not in inputs and not isinstance(spec.type, OptionalType):
            derived = derive_input(spec, {name: readings[name].array for name in readings}, sizes, rate)
            if derived is None:
                hint = f'read_inputs takes a dict: {{"{spec.name}": …}}'
                raise InputError(f"input {spec.name!r}, {spec.type}, is missing", file=model.file, hint=hint)
            inputs[spec.name] = derived[0]
    return {name: inputs[name] for name in specs if name in inputs}


def _assign_sources(model: Model, source: Any) -> dict[str, Any]:
    """Return files and values by input; the arrays of an archive are inputs by name."""
    if isinstance(source, Mapping):
        return {str(name): _find_files(each) for name, each in source.items()}
    file = _find_files(source)
    first = file[0] if isinstance(file, list) else file
    if not isinstance(first, DataSource):
        raise InputError(f"{short_repr(source)}: no such file", file=model.file)
    if first.kind is Kind.NPZ:
        names = {spec.name for spec in (*model.inputs, *model.defaults)}
        members = {name: arrays.read_npz(first, name) for name in arrays.list_archive(first) if name in names}
        if members:
            return members
    candidates = main_inputs(model.inputs, first.kind)
    if len(candidates) != 1:
        hint = f"name one in a dict; the inputs are {', '.join(spec.name for spec in model.inputs)}"
        raise InputError(f"{first.name}: several inputs could take this file", file=model.file, hint=hint)
    return {candidates[0].name: file}


def _find_files(source: Any) -> Any:
    """Return the file of a path, the files of a list of paths, or the value itself."""
    if isinstance(source, (str, PathLike)):
        path = fspath(source)
        file = find_source(path) if isinstance(path, str) and path != "-" else None
        if file is None and not isinstance(source, str):
            raise InputError(f"{path}: no such file")
        return file if file is not None else source
    if isinstance(source, (list, tuple)) and source and all(isinstance(item, (str, PathLike)) for item in source):
        files = [_find_files(item) for item in source]
        return files if all(isinstance(item, DataSource) for item in files) else list(source)
    return source


def _read_source(spec: TensorSpec, source: Any, context: InputContext) -> Reading:
    if isinstance(source, DataSource):
        return read_input([source], spec, context)
    if isinstance(source, list) and source and isinstance(source[0], DataSource):
        return read_input(source, spec, context)
    if isinstance(source, str) and spec.element is not DType.string:
        raise InputError(f"{source}: no such file", hint=f"input {spec.name!r} takes {spec.type}")
    array = source if isinstance(source, np.ndarray) else arrays.from_lists(source, spec, f"input {spec.name!r}")
    return Reading(arrays.fit_to_input(array, spec, f"the value for input {spec.name!r}")[0])


def _is_audio(source: Any) -> bool:
    return isinstance(source, DataSource) and source.kind is Kind.AUDIO


def _find_rate(
    readings: Mapping[str, Reading], specs: Mapping[str, TensorSpec], file: DataSource, context: InputContext
) -> int | None:
    rate = next((readings[name].array for name in readings if is_rate(specs[name])), None)
    if rate is not None:
        return int(rate.reshape(-1)[0])
    return choose_rate(tuple(specs.values()), read_audio(file.read(), file.name).rate, context.properties)


def _check_numbers(name: str, numbers: Any) -> tuple[float, ...] | None:
    if numbers is None:
        return None
    try:
        return tuple(float(number) for number in np.atleast_1d(np.asarray(numbers, np.float64)))
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, or one for each channel, not {short_repr(numbers)}") from None


def _check_layout(layout: Any) -> str:
    letters = layout.upper() if isinstance(layout, str) else ""
    if not {"H", "W"} <= set(letters) <= set("NCHW") or len(set(letters)) != len(letters) or "N" in letters[1:]:
        raise InputError(
            f"layout must be of N, C, H and W, each once, not {short_repr(layout)}", hint='for instance "NCHW"'
        )
    return letters


def _check_choice(name: str, choice: Any, choices: Sequence[str]) -> str | None:
    if choice is None or choice in choices:
        return choice  # type: ignore[no-any-return]
    raise InputError(f"{name} must be one of {', '.join(choices)}, not {short_repr(choice)}")
