"""`weft.read_inputs`: what people have in files, as a loaded model takes it."""

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
from weft.readers.companions import companion, is_rate, main_inputs, rate_for
from weft.readers.content import DataSource, Kind, source_at
from weft.readers.pictures import COLOURS, RESIZES, PictureDirections
from weft.readers.read import Reading, Terms, read_input
from weft.readers.sound import read_wav

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
    """Inputs for a model from files: `model.run(weft.read_inputs(model, "photo.jpg"))`, as `weft run` reads them.

    Pictures are turned, cut, scaled and laid out, sound is mixed and resampled, as the model's inputs and what it says
    of itself suggest (docs/guides/inputs.md); the logger `weft.inputs` tells how. Inputs that follow from others, such
    as lengths, masks and states before a first run, are filled in.

    source: a file for the one input that people give data for, a list of pictures, which become a batch, or a dict of
        files, lists of files, arrays, numbers and texts by the names of inputs.
    scale: what pixels from 0 to 255 are multiplied by; mean and std: what is taken off then, and divided by.
    layout: what the dims of a picture's input are, for instance "NCHW".
    resize: "crop" cuts the middle out, "fit" keeps all and puts grey beside it, "stretch" changes the proportions.
    colours: the order of channels, "rgb" or "bgr", or "grey".
    rate: what sound is resampled to.
    """
    directions = PictureDirections(
        None if scale is None else float(scale),
        _numbers("mean", mean),
        _numbers("std", std),
        None if layout is None else _layout(layout),
        _one_of("resize", resize, RESIZES),
        _one_of("colours", colours, COLOURS),
    )
    sizes: dict[str, int] = {}
    specs = {spec.name: spec for spec in (*model.inputs, *model.defaults)}
    given = _by_name(model, source)
    readings: dict[str, Reading] = {}
    for name in sorted(given, key=lambda name: _is_sound(given[name])):
        if name not in specs:
            raise InputError(f"there is no input {name!r}", file=model.file, hint=f"there are {', '.join(specs)}")
        terms = Terms(lambda: model.source, model.outputs, directions, sizes, rate)
        if rate is None and _is_sound(given[name]):
            terms = replace(terms, rate=_rate(readings, specs, given[name], terms))
        readings[name] = _read(specs[name], given[name], terms)
        rate = rate or readings[name].rate
        for dim, size in zip(specs[name].shape or (), readings[name].array.shape):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
        if readings[name].told:
            INPUTS.info("input %s: %s", name, readings[name].told)
    found = {name: reading.array for name, reading in readings.items()}
    for spec in model.inputs:
        if spec.name not in found and not isinstance(spec.type, OptionalType):
            follows = companion(spec, {name: readings[name].array for name in readings}, sizes, rate)
            if follows is None:
                hint = f'read_inputs takes a dict: {{"{spec.name}": …}}'
                raise InputError(f"nothing is given for input {spec.name!r}, {spec.type}", file=model.file, hint=hint)
            found[spec.name] = follows[0]
    return {name: found[name] for name in specs if name in found}


def _by_name(model: Model, source: Any) -> dict[str, Any]:
    """What is given for each input; a file without a name may name inputs itself."""
    if isinstance(source, Mapping):
        return {str(name): _file(each) for name, each in source.items()}
    file = _file(source)
    first = file[0] if isinstance(file, list) else file
    if not isinstance(first, DataSource):
        raise InputError(f"{short_repr(source)}: no such file", file=model.file)
    if first.kind is Kind.NPZ:
        known = {spec.name for spec in (*model.inputs, *model.defaults)}
        held = {name: arrays.read_npz(first, name) for name in arrays.archive_arrays(first) if name in known}
        if held:
            return held
    candidates = main_inputs(model.inputs, first.kind)
    if len(candidates) != 1:
        hint = f"name one in a dict; the inputs are {', '.join(spec.name for spec in model.inputs)}"
        raise InputError(f"{first.name}: it is not known which input this is for", file=model.file, hint=hint)
    return {candidates[0].name: file}


def _file(given: Any) -> Any:
    """A file where one of that name is there, files of a list, or what was given."""
    if isinstance(given, (str, PathLike)):
        path = fspath(given)
        found = source_at(path) if isinstance(path, str) and path != "-" else None
        if found is None and not isinstance(given, str):
            raise InputError(f"{path}: no such file")
        return found if found is not None else given
    if isinstance(given, (list, tuple)) and given and all(isinstance(each, (str, PathLike)) for each in given):
        files = [_file(each) for each in given]
        return files if all(isinstance(each, DataSource) for each in files) else list(given)
    return given


def _read(spec: TensorSpec, given: Any, terms: Terms) -> Reading:
    if isinstance(given, DataSource):
        return read_input([given], spec, terms)
    if isinstance(given, list) and given and isinstance(given[0], DataSource):
        return read_input(given, spec, terms)
    if isinstance(given, str) and spec.element is not DType.string:
        raise InputError(f"{given}: no such file", hint=f"input {spec.name!r} takes {spec.type}")
    array = given if isinstance(given, np.ndarray) else arrays.array_of(given, spec, f"input {spec.name!r}")
    return Reading(arrays.fitted(array, spec, f"what is given for input {spec.name!r}")[0])


def _is_sound(given: Any) -> bool:
    return isinstance(given, DataSource) and given.kind is Kind.WAV


def _rate(
    readings: Mapping[str, Reading], specs: Mapping[str, TensorSpec], file: DataSource, terms: Terms
) -> int | None:
    said = next((readings[name].array for name in readings if is_rate(specs[name])), None)
    if said is not None:
        return int(said.reshape(-1)[0])
    return rate_for(tuple(specs.values()), read_wav(file.content(), file.name).rate, terms.properties)


def _numbers(name: str, given: Any) -> tuple[float, ...] | None:
    if given is None:
        return None
    try:
        return tuple(float(number) for number in np.atleast_1d(np.asarray(given, np.float64)))
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, or one for each channel, not {short_repr(given)}") from None


def _layout(given: Any) -> str:
    letters = given.upper() if isinstance(given, str) else ""
    if not {"H", "W"} <= set(letters) <= set("NCHW") or len(set(letters)) != len(letters) or "N" in letters[1:]:
        raise InputError(
            f"layout must be of N, C, H and W, each once, not {short_repr(given)}", hint='for instance "NCHW"'
        )
    return letters


def _one_of(name: str, given: Any, known: Sequence[str]) -> str | None:
    if given is None or given in known:
        return given  # type: ignore[no-any-return]
    raise InputError(f"{name} must be one of {', '.join(known)}, not {short_repr(given)}")
