"""Inputs for a model from the command line: files of all kinds, numbers, texts, or data made up to fit."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from rich.text import Text

from weft.cli import option_types, options, output
from weft.cli.image_options import add_image_options, directions
from weft.cli.sizes import Sizes, check_sizes, sizes_for
from weft.errors import InputError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.graph import OnnxModel
from weft.ir.specs import TensorSpec
from weft.ir.types import OptionalType
from weft.plan.usual_sizes import usual_sizes
from weft.readers import arrays
from weft.readers.companions import companion, is_rate, main_inputs, rate_for
from weft.readers.content import DataSource, Kind, source_at
from weft.readers.read import Reading, Terms, read_input
from weft.records import dataclass
from weft.runtime.generated_inputs import ONES, RANDOM, ZEROS, generate_input
from weft.runtime.model import Model
from weft.runtime.random_inputs import fitting_sizes

FILLS = tuple(f"@{fill}" for fill in (RANDOM, ZEROS, ONES))


@dataclass(frozen=True, slots=True)
class Given:
    """An input's array, where it came from, and what was done to it."""

    name: str
    array: Array
    source: str
    told: str = ""
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class InputSet:
    """All inputs of a run, the sizes of dynamic dims in them, and those that nobody gave: of made-up data alone."""

    given: tuple[Given, ...]
    sizes: Sizes
    assumed: Sizes
    rate: int | None = None  # of the sound among them

    @property
    def arrays(self) -> dict[str, Array]:
        return {item.name: item.array for item in self.given}


class Declared(Protocol):
    """What a model takes and gives: a Model, or the Signature of one."""

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...

    @property
    def defaults(self) -> Sequence[TensorSpec]: ...

    @property
    def outputs(self) -> Sequence[TensorSpec]: ...


def add_inputs(parser: ArgumentParser, positional: bool = True) -> None:
    """The options that say what a model runs on; `positional`: files may stand behind the model, too."""
    group = parser.add_argument_group("inputs")
    if positional:
        group.add_argument(
            "data",
            nargs="*",
            default=[],
            metavar="DATA",
            help="a file for the model's one input (several pictures make a batch), or one that names the inputs: "
            ".npz, JSON, a table, a test set of ONNX; - is standard input",
        )
        parser.set_defaults(several="data")
    group.add_argument(
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="NAME=SOURCE",
        help="data for one input: a picture, a WAV sound, .npy, .npz, .pb, JSON, CSV, a text, a number, a list like "
        "[1,2,3], - for standard input, @random, @zeros or @ones; may be repeated",
    )
    options.add_sizes(group)
    options.add_seed(group)
    group.add_argument(
        "--rate", type=option_types.count, metavar="HZ", help="resample sound to this rate (default: as the model says)"
    )
    add_image_options(parser.add_argument_group("pictures", "What is not directed follows from the model."))


def inputs_for(args: Namespace, declared: Declared, source: Callable[[], OnnxModel]) -> InputSet:
    """An array for every input, as the options say; what was done to files is said on stderr.

    `source` gives the model's file, which is read only where that tells something.
    """
    every = (*declared.inputs, *declared.defaults)
    sizes = sizes_for(args, every)
    asked = tuple(sizes)
    terms = Terms(source, declared.outputs, directions(args), sizes, args.rate)
    sources = [*args.input, *getattr(args, "data", ())]
    model = declared if isinstance(declared, Model) else None
    given = make_inputs(declared.inputs, declared.defaults, sources, sizes, args.seed, terms, model)
    tell(given)
    return InputSet(
        tuple(given), sizes, _assumed(given, every, asked), next((item.rate for item in given if item.rate), None)
    )


def tell(given: Sequence[Given]) -> None:
    """Say on stderr what was done to what people gave."""
    for item in given:
        if item.told:
            line = f"input {item.name}: {item.told}"
            output.error_console().print(Text(output.escape_unprintable(line), "dim"))


def _assumed(given: Sequence[Given], specs: Sequence[TensorSpec], asked: Sequence[str]) -> Sizes:
    made = {item.name: item.array.shape for item in given if item.source in FILLS}
    known = {dim for spec in specs if spec.name not in made for dim in spec.shape or ()}
    return {
        dim: size
        for spec in specs
        if spec.name in made
        for dim, size in zip(spec.shape or (), made[spec.name])
        if isinstance(dim, str) and dim not in known and dim not in asked
    }


def make_inputs(
    specs: Sequence[TensorSpec],
    defaults: Sequence[TensorSpec],
    sources: Sequence[str],
    sizes: Sizes,
    seed: int,
    terms: Terms | None = None,
    model: Model | None = None,
) -> list[Given]:
    """An array for every input: as the sources say. Where they hold no data at all, what they do not name is random.

    Inputs that have a default or are optional are left out unless a source names them. Files are read first, and the
    sizes of their dims hold for the arrays that are made up; a dim that nothing gives a size gets a usual one, for
    which the model works if there is one. `sizes` receives what was found out.
    """
    every = (*specs, *defaults)
    check_sizes(every, sizes)
    terms = replace(terms or Terms(), sizes=sizes)
    assigned = _Assignment(specs, every)
    for text in sources:
        assigned.take(text)
    readings = assigned.read(terms, sizes)
    needed = [spec for spec in specs if not isinstance(spec.type, OptionalType)]
    fills = dict(assigned.fills)
    if not readings:
        fills = {spec.name: f"@{RANDOM}" for spec in needed} | fills
    random = np.random.default_rng(seed)
    given = {
        name: Given(name, reading.array, assigned.named(name), reading.told, reading.rate)
        for name, reading in readings.items()
    }
    unfilled = {dim for spec in every if spec.name in fills for dim in spec.shape or () if isinstance(dim, str)}
    if not unfilled <= sizes.keys():
        usual = next(usual_sizes(specs, (), sizes)) if model is None else fitting_sizes(model, sizes)
        sizes.update((dim, size) for dim, size in usual.items() if dim in unfilled and dim not in sizes)
    for spec in every:
        if spec.name in fills and spec.name not in given:
            made = _make(spec, fills[spec.name], sizes, random)
            given[spec.name] = Given(spec.name, made, fills[spec.name])
    missing = [spec for spec in needed if spec.name not in given]
    for spec in missing:
        follows = companion(spec, {name: found.array for name, found in readings.items()}, sizes, assigned.rate)
        if follows is None:
            raise _missing(spec)
        given[spec.name] = Given(spec.name, *follows)
    return [given[spec.name] for spec in every if spec.name in given]


class _Assignment:
    """What each input is made from, as it is found out source by source."""

    def __init__(self, specs: Sequence[TensorSpec], every: Sequence[TensorSpec]) -> None:
        self._specs = specs
        self._every = {spec.name: spec for spec in every}
        self._files: dict[str, list[DataSource]] = {}
        self._arrays: dict[str, tuple[Array, str]] = {}
        self.fills: dict[str, str] = {}
        self.rate: int | None = None

    def named(self, name: str) -> str:
        if name in self._arrays:
            return self._arrays[name][1]
        files = [file.name for file in self._files[name]]
        return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"

    def take(self, text: str) -> None:
        """One option: with an input's name before it, or without."""
        name = max((name for name in self._every if text.startswith(f"{name}=")), key=len, default=None)
        if name is not None:
            self._take_named(self._every[name], text[len(name) + 1 :])
        elif text in FILLS:
            for spec in self._specs:
                self.fills.setdefault(spec.name, text)
        else:
            file = source_at(text)
            if file is None:
                raise self._unknown(text)
            self._take_bare(file)

    def _take_named(self, spec: TensorSpec, text: str) -> None:
        if text in FILLS:
            self.fills[spec.name] = text
            return
        file = source_at(text)
        if file is not None and not (spec.element is DType.string and file.kind is Kind.FOLDER):
            self._files.setdefault(spec.name, []).append(file)
            return
        path, mark, member = text.partition(".npz:")  # the name of an array may have colons, too
        archive = source_at(f"{path}.npz") if mark else None
        array = arrays.read_npz(archive, member) if archive is not None else arrays.typed(text, spec)
        if array is None:
            if text.startswith("@"):
                problem = f"--input {spec.name}={text}: not a way to make data"
                raise InputError(problem, hint=f"use {', '.join(FILLS)}")
            what = "a text" if spec.element is DType.string else "a number or a list like [1,2,3]"
            problem = f"{text}: no such file" if text else f"--input {spec.name}=: nothing is given"
            raise InputError(problem, hint=f"input {spec.name!r} takes {spec.type}: a file, or {what}")
        self._arrays[spec.name] = (array, text if len(text) <= 40 else f"{text[:40]}…")

    def _take_bare(self, file: DataSource) -> None:
        """A file without a name before it: it names inputs itself, or is for the only one that it can be for."""
        found: Mapping[str, Array] = {}
        match file.kind:
            case Kind.FOLDER if (file.path / "input_0.pb").exists():
                found = self._test_set(file)
            case Kind.NPZ:
                names = arrays.archive_arrays(file)
                found = {name: arrays.read_npz(file, name) for name in names if name in self._every}
            case Kind.TEXT if file.content(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
                content = arrays.read_json(file.text(), file.name)
                chosen = {name: each for name, each in content.items() if name in self._every}
                found = {name: arrays.array_of(each, self._every[name], file.name) for name, each in chosen.items()}
                if not found:
                    problem = f"{file.name}: names none of the inputs"
                    raise InputError(problem, hint=f"these are {', '.join(self._every)}")
            case Kind.TEXT if len(self._specs) > 1 and self._are_named_in(file):
                found = arrays.table_columns(file, self._specs) or {}
        for name, array in found.items():
            self._arrays[name] = (array, file.name)
        if not found:
            self._files.setdefault(self._main(file).name, []).append(file)

    def _are_named_in(self, file: DataSource) -> bool:
        """Whether the first line of a text can be that of a table with a column for each input."""
        first = file.content().partition(b"\n")[0].decode("utf-8", "replace")
        return all(spec.name in first for spec in self._specs)

    def _test_set(self, folder: DataSource) -> dict[str, Array]:
        found = {}
        for number, spec in enumerate(self._specs):
            path = folder.path / f"input_{number}.pb"
            if path.is_file():
                name, array = arrays.read_tensor(DataSource(str(path)))
                found[name if name in self._every else spec.name] = array
        return found

    def _main(self, file: DataSource) -> TensorSpec:
        """The one input that people give data for."""
        candidates = main_inputs(self._specs, file.kind)
        if len(candidates) != 1:
            names = ", ".join(self._every) or "none"
            first = next(iter(self._every), "x")
            problem = f"{file.name}: the model has several inputs, and it is not known which this is for"
            if not candidates:
                problem = f"{file.name}: the model has no inputs"
            hint = f"name one, for instance --input {first}={file.name}; the inputs are {names}"
            raise InputError(problem, hint=hint)
        return candidates[0]

    def _unknown(self, text: str) -> InputError:
        name, mark, rest = text.partition("=")
        known = f"the inputs are {', '.join(self._every) or 'none'}"
        if not mark:
            hint = "results are written with -o FILE" if text.endswith(".json") else "give the path of a file"
            return InputError(f"{text}: no such file", hint=f"{hint}, or --input NAME=SOURCE; {known}")
        from difflib import get_close_matches

        close = get_close_matches(name, self._every, 1)
        hint = f"did you mean {close[0]}={rest}? {known}" if close else known
        return InputError(f"--input {text}: the model has no input {name!r}", hint=hint)

    def read(self, terms: Terms, sizes: Sizes) -> dict[str, Reading]:
        """All that is no made-up data; sounds last, since other inputs may say their rate."""
        readings: dict[str, Reading] = {}
        for name, (array, origin) in self._arrays.items():
            fitted, _ = arrays.fitted(array, self._every[name], f"{name}={origin}")
            readings[name] = Reading(fitted)
            _learn_sizes(self._every[name], fitted, sizes)
        sounds = [name for name, files in self._files.items() if files[0].kind is Kind.WAV]
        for name in sorted(self._files, key=sounds.__contains__):
            spec = self._every[name]
            if name in readings:
                raise InputError(f"input {name!r} is given twice")
            if name in sounds:
                self.rate = terms.rate or self._rate(readings, terms, self._files[name][0])
            readings[name] = read_input(self._files[name], spec, replace(terms, rate=self.rate))
            _learn_sizes(spec, readings[name].array, sizes)
        return readings

    def _rate(self, readings: Mapping[str, Reading], terms: Terms, file: DataSource) -> int | None:
        """The rate that a model wants sound in, where anything says it."""
        given = next((readings[name].array for name in readings if is_rate(self._every[name])), None)
        if given is not None:
            return int(given.reshape(-1)[0])
        own = int.from_bytes(file.content(28)[24:28], "little")
        return rate_for(tuple(self._every.values()), own, terms.properties)


def _missing(spec: TensorSpec) -> InputError:
    way = "a text" if spec.element is DType.string else "a number or a list"
    return InputError(
        f"there is data for other inputs, but none for {spec.name!r}, which takes {spec.type}",
        hint=f"give --input {spec.name}=FILE, or {way}; --input {spec.name}=@zeros, @ones or @random makes it up",
    )


def _learn_sizes(spec: TensorSpec, array: Array, sizes: Sizes) -> None:
    shape = spec.shape
    if shape is None or len(shape) != array.ndim:
        return
    for dim, size in zip(shape, array.shape, strict=True):
        if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
            raise InputError(
                f"input {spec.name!r} has {dim} = {size}, but --shape or another input says {sizes[dim]}",
                hint=f"its shape is ({', '.join(map(str, array.shape))}), declared as ({', '.join(map(str, shape))})",
            )


def _make(spec: TensorSpec, source: str, sizes: Sizes, random: np.random.Generator) -> Array:
    for dim in spec.shape or ():
        if isinstance(dim, str):
            sizes.setdefault(dim, 1)
    try:
        return generate_input(spec, sizes, random, source[1:])
    except InputError as error:
        hint = "give smaller sizes with --shape" if spec.shape else f"give a file: --input {spec.name}=file.npy"
        raise InputError(error.problem, hint=hint) from error.__cause__
