"""Inputs for a model from the command line: files, or data made up to fit."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli import options
from weft.cli.sizes import check_sizes
from weft.errors import InputError
from weft.ir.specs import TensorSpec
from weft.ir.types import OptionalType
from weft.records import dataclass
from weft.runtime.generated_inputs import ONES, RANDOM, ZEROS, made_up

Array = np.ndarray[Any, Any]

FILLS = tuple(f"@{fill}" for fill in (RANDOM, ZEROS, ONES))


@dataclass(frozen=True, slots=True)
class Given:
    """An input's array and where it came from."""

    name: str
    array: Array
    source: str


def add_inputs(parser: ArgumentParser) -> None:
    """The options that say what a model runs on."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=SOURCE",
        help="data for one input: a .npy or .npz file, @random, @zeros or @ones; "
        "without a name: a .npz with arrays named like the inputs, or one source for all",
    )
    options.add_sizes(parser)
    options.add_seed(parser)


def make_inputs(
    specs: Sequence[TensorSpec],
    defaults: Sequence[TensorSpec],
    sources: Sequence[str],
    sizes: dict[str, int],
    seed: int,
) -> list[Given]:
    """An array for every input: as the options say, and random where they say nothing.

    Inputs that have a default or are optional are left out unless an option names them. Files are read first, and the
    sizes of their dims hold for the arrays that are made up; a dim that nothing gives a size gets 1. `sizes` receives
    what was found out.
    """
    check_sizes([*specs, *defaults], sizes)
    chosen = _assign(specs, defaults, sources)
    for spec in specs:
        if not isinstance(spec.type, OptionalType):
            chosen.setdefault(spec.name, "@random")
    wanted = [spec for spec in (*specs, *defaults) if spec.name in chosen]
    arrays = {spec.name: _read(spec, chosen[spec.name]) for spec in wanted if not chosen[spec.name].startswith("@")}
    for spec in wanted:
        if spec.name in arrays:
            _learn_sizes(spec, arrays[spec.name], sizes)
    random = np.random.default_rng(seed)
    for spec in wanted:
        if spec.name not in arrays:
            arrays[spec.name] = _make(spec, chosen[spec.name], sizes, random)
    return [Given(spec.name, arrays[spec.name], chosen[spec.name]) for spec in wanted]


def _assign(specs: Sequence[TensorSpec], defaults: Sequence[TensorSpec], options: Sequence[str]) -> dict[str, str]:
    """What each named input is made from; a bare fill is for all, a bare .npz names its arrays, a bare .npy is for a
    model with one input.
    """
    names = [spec.name for spec in specs]
    every = [*names, *(spec.name for spec in defaults)]
    chosen: dict[str, str] = {}
    for option in options:
        name = next((name for name in every if option.startswith(f"{name}=")), None)
        if name is not None:
            chosen[name] = option[len(name) + 1 :]
        elif option in FILLS:
            chosen.update((name, option) for name in names if name not in chosen)
        elif option.endswith(".npz"):
            chosen.update((name, f"{option}:{name}") for name in _archive_names(option) if name in every)
        elif len(names) == 1 and "=" not in option:
            chosen[names[0]] = option
        else:
            raise InputError(
                f"--input {option}: not of the form name=file.npy, name=@random, name=@zeros or name=@ones",
                hint=f"the inputs are {', '.join(every) or 'none'}",
            )
    return chosen


def _archive_names(path: str) -> list[str]:
    with _open(path) as archive:
        return list(archive.files)


def _open(path: str) -> Any:
    """A .npy file's array or a .npz file's archive."""
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    try:
        return np.load(path, allow_pickle=False)
    except Exception as error:  # numpy, zipfile, zlib and pickle each have errors of their own for damaged files
        raise InputError(f"{path}: not a readable .npy or .npz file: {error}") from error


def _read(spec: TensorSpec, source: str) -> Array:
    path, mark, member = source.partition(".npz:")  # the name of an array may have colons, too
    path = f"{path}.npz" if mark else source
    content = _open(path)
    if not isinstance(content, np.ndarray):
        with content as archive:
            wanted = member or (
                spec.name if spec.name in archive.files or len(archive.files) != 1 else archive.files[0]
            )
            if wanted not in archive.files:
                raise InputError(f"{path}: holds no array {wanted!r}", hint=f"it has {', '.join(archive.files)}")
            try:
                content = archive[wanted]
            except Exception as error:
                raise InputError(f"{path}: its array {wanted!r} cannot be read: {error}") from error
    dtype = spec.element
    if dtype is not None and _is_foreign(dtype.numpy) and content.dtype != dtype.numpy:
        same_width = content.dtype.kind == "V" and content.dtype.itemsize == dtype.numpy.itemsize
        return np.asarray(content.view(dtype.numpy) if same_width else content.astype(dtype.numpy))
    return np.asarray(content)


def _is_foreign(dtype: np.dtype[Any]) -> bool:
    """Whether numpy itself has no such dtype, so that .npy files cannot hold it."""
    return dtype.kind not in "biufcOUS" or dtype.name not in np.sctypeDict


def _learn_sizes(spec: TensorSpec, array: Array, sizes: dict[str, int]) -> None:
    shape = spec.shape
    if shape is None or len(shape) != array.ndim:
        return  # running the model says what is wrong
    for dim, size in zip(shape, array.shape, strict=True):
        if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
            raise InputError(
                f"input {spec.name!r} has {dim} = {size}, but --shape or another input says {sizes[dim]}",
                hint=f"its shape is ({', '.join(map(str, array.shape))}), declared as ({', '.join(map(str, shape))})",
            )


def _make(spec: TensorSpec, source: str, sizes: dict[str, int], random: np.random.Generator) -> Array:
    if source not in FILLS:
        raise InputError(f"--input {spec.name}={source}: not a way to make data", hint=f"use {', '.join(FILLS)}")
    for dim in spec.shape or ():
        if isinstance(dim, str):
            sizes.setdefault(dim, 1)
    try:
        return made_up(spec, sizes, random, source[1:])
    except InputError as error:
        hint = "give smaller sizes with --shape" if spec.shape else f"give a file: --input {spec.name}=file.npy"
        raise InputError(error.problem, hint=hint) from error.__cause__
