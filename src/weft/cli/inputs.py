"""Inputs for a model from the command line: files, numbers, text, or generated data."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from rich.text import Text

from weft.cli import option_types, options, output
from weft.cli.image_options import add_image_options, image_directions
from weft.cli.parsing import closest_match
from weft.cli.sizes import Sizes, check_sizes, sizes_for
from weft.errors import InputError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.graph import OnnxModel
from weft.ir.specs import TensorSpec
from weft.ir.types import OptionalType
from weft.plan.usual_sizes import usual_sizes
from weft.readers import arrays
from weft.readers.audio import read_audio
from weft.readers.content import DataSource, Kind, find_source
from weft.readers.derived_inputs import choose_rate, derive_input, is_rate, main_inputs
from weft.readers.read import InputContext, Reading, read_input
from weft.records import dataclass
from weft.runtime.generated_inputs import ONES, RANDOM, ZEROS, generate_input
from weft.runtime.model import Model
from weft.runtime.random_inputs import fitting_sizes

FILLS = tuple(f"@{fill}" for fill in (RANDOM, ZEROS, ONES))


@dataclass(frozen=True, slots=True)
class InputArray:
    """The array of one input, its source, and how the source was converted."""

    name: str
    array: Array
    source: str
    note: str = ""
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class InputSet:
    """All inputs of a run, the sizes of their dynamic dims, and which of these were guessed for generated data."""

    items: tuple[InputArray, ...]
    sizes: Sizes
    guessed: Sizes
    rate: int | None = None  # sampling rate of an audio input

    @property
    def arrays(self) -> dict[str, Array]:
        return {item.name: item.array for item in self.items}


class Declared(Protocol):
    """The inputs and outputs of a model: a Model or a Signature."""

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...

    @property
    def defaults(self) -> Sequence[TensorSpec]: ...

    @property
    def outputs(self) -> Sequence[TensorSpec]: ...


def add_inputs(parser: ArgumentParser, positional: bool = True) -> None:
    """Add the options for input data; with `positional`, files may also follow the model."""
    group = parser.add_argument_group("inputs")
    if positional:
        group.add_argument(
            "data",
            nargs="*",
            default=[],
            metavar="DATA",
            help="a file for the model's only input (several images make a batch), or a file with named inputs: "
            ".npz, JSON, CSV, an ONNX test set; - is standard input",
        )
        parser.set_defaults(late_files="data")
    group.add_argument(
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="NAME=SOURCE",
        help="data for one input: an image, a WAV file, .npy, .npz, .pb, JSON, CSV, text, a number, a list such as "
        "[1,2,3], - for standard input, @random, @zeros or @ones; may be repeated",
    )
    options.add_sizes(group)
    options.add_seed(group)
    group.add_argument(
        "--rate",
        type=option_types.count,
        metavar="HZ",
        help="resample audio to this rate (default: the rate that the model states)",
    )
    add_image_options(parser.add_argument_group("images", "Settings that are left out are inferred from the model."))


def inputs_for(
    args: Namespace, declared: Declared, source: Callable[[], OnnxModel], *, quiet: bool = False
) -> InputSet:
    """Read or generate an array for every input; unless `quiet`, say on stderr how files were converted.

    `source` returns the model's file; it is called only if conversion depends on it.
    """
    every = (*declared.inputs, *declared.defaults)
    sizes = sizes_for(args, every)
    user_dims = tuple(sizes)
    context = InputContext(source, declared.outputs, image_directions(args), sizes, args.rate)
    sources = [*args.input, *getattr(args, "data", ())]
    model = declared if isinstance(declared, Model) else None
    items = make_inputs(declared.inputs, declared.defaults, sources, sizes, args.seed, context, model)
    if not quiet:
        _print_notes(items)
    rate = next((item.rate for item in items if item.rate), None)
    return InputSet(tuple(items), sizes, _guessed_sizes(items, every, user_dims), rate)


def _print_notes(items: Sequence[InputArray]) -> None:
    for item in items:
        if item.note:
            line = f"input {item.name}: {item.note}"
            output.error_console().print(Text(output.escape_unprintable(line), "dim"))


def _guessed_sizes(items: Sequence[InputArray], specs: Sequence[TensorSpec], user_dims: Sequence[str]) -> Sizes:
    generated = {item.name: item.array.shape for item in items if item.source in FILLS}
    read_dims = {dim for spec in specs if spec.name not in generated for dim in spec.shape or ()}
    return {
        dim: size
        for spec in specs
        if spec.name in generated
        for dim, size in zip(spec.shape or (), generated[spec.name])
        if isinstance(dim, str) and dim not in read_dims and dim not in user_dims
    }


def make_inputs(
    specs: Sequence[TensorSpec],
    defaults: Sequence[TensorSpec],
    sources: Sequence[str],
    sizes: Sizes,
    seed: int,
    context: InputContext | None = None,
    model: Model | None = None,
) -> list[InputArray]:
    """Return an array for every input. Without any data in `sources`, inputs that they do not name are random.

    Inputs with a default and optional inputs are left out unless a source names them. Files are read first, and
    generated arrays take the sizes of their dims; a dim without a size gets a typical one, with which `model` runs if
    there is one. All sizes are added to `sizes`.
    """
    every = (*specs, *defaults)
    check_sizes(every, sizes)
    context = replace(context or InputContext(), sizes=sizes)
    assignment = _Assignment(specs, every)
    for text in sources:
        assignment.add(text)
    readings = assignment.read(context, sizes)
    required = [spec for spec in specs if not isinstance(spec.type, OptionalType)]
    fills = dict(assignment.fills)
    if not readings:
        fills = {spec.name: f"@{RANDOM}" for spec in required} | fills
    random = np.random.default_rng(seed)
    items = {
        name: InputArray(name, reading.array, assignment.describe_source(name), reading.note, reading.rate)
        for name, reading in readings.items()
    }
    fill_dims = {dim for spec in every if spec.name in fills for dim in spec.shape or () if isinstance(dim, str)}
    if not fill_dims <= sizes.keys():
        usual = next(usual_sizes(specs, (), sizes)) if model is None else fitting_sizes(model, sizes)
        sizes.update((dim, size) for dim, size in usual.items() if dim in fill_dims and dim not in sizes)
    for spec in every:
        if spec.name in fills and spec.name not in items:
            array = _generate(spec, fills[spec.name], sizes, random)
            items[spec.name] = InputArray(spec.name, array, fills[spec.name])
    for spec in required:
        if spec.name not in items:
            arrays_read = {name: reading.array for name, reading in readings.items()}
            derived = derive_input(spec, arrays_read, sizes, assignment.rate)
            if derived is None:
                raise _missing_input_error(spec)
            items[spec.name] = InputArray(spec.name, *derived)
    return [items[spec.name] for spec in every if spec.name in items]


class _Assignment:
    """The data source of each input, collected from the command line."""

    def __init__(self, specs: Sequence[TensorSpec], every: Sequence[TensorSpec]) -> None:
        self._specs = specs
        self._every = {spec.name: spec for spec in every}
        self._files: dict[str, list[DataSource]] = {}
        self._arrays: dict[str, tuple[Array, str]] = {}
        self.fills: dict[str, str] = {}
        self.rate: int | None = None

    def describe_source(self, name: str) -> str:
        if name in self._arrays:
            return self._arrays[name][1]
        files = [file.name for file in self._files[name]]
        return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"

    def add(self, text: str) -> None:
        """Add one source: `NAME=SOURCE`, or a file without a name."""
        name = max((name for name in self._every if text.startswith(f"{name}=")), key=len, default=None)
        if name is not None:
            self._add_named(self._every[name], text[len(name) + 1 :])
        elif text in FILLS:
            for spec in self._specs:
                self.fills.setdefault(spec.name, text)
        else:
            file = find_source(text)
            if file is None:
                raise self._unknown_source_error(text)
            self._add_unnamed(file)

    def _add_named(self, spec: TensorSpec, text: str) -> None:
        if text in FILLS:
            self.fills[spec.name] = text
            return
        file = find_source(text)
        if file is not None and not (spec.element is DType.string and file.kind is Kind.FOLDER):
            self._files.setdefault(spec.name, []).append(file)
            return
        path, mark, member = text.partition(".npz:")  # the name of an array may have colons, too
        archive = find_source(f"{path}.npz") if mark else None
        array = arrays.read_npz(archive, member) if archive is not None else arrays.parse_value(text, spec)
        if array is None:
            if text.startswith("@"):
                problem = f"--input {spec.name}={text}: unknown kind of generated data"
                raise InputError(problem, hint=f"use {', '.join(FILLS)}")
            literal = "text" if spec.element is DType.string else "a number or a list such as [1,2,3]"
            problem = f"{text}: no such file" if text else f"--input {spec.name}=: the data is missing"
            raise InputError(problem, hint=f"input {spec.name!r} takes {spec.type}: a file, or {literal}")
        self._arrays[spec.name] = (array, text if len(text) <= 40 else f"{text[:40]}…")

    def _add_unnamed(self, file: DataSource) -> None:
        """Add a file that names the inputs itself, or that can belong to only one of them."""
        named: Mapping[str, Array] = {}
        match file.kind:
            case Kind.FOLDER if (file.path / "input_0.pb").exists():
                named = self._read_test_set(file)
            case Kind.NPZ:
                names = arrays.list_archive(file)
                named = {name: arrays.read_npz(file, name) for name in names if name in self._every}
            case Kind.TEXT if file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
                content = arrays.read_json(file.read_text(), file.name)
                chosen = {name: each for name, each in content.items() if name in self._every}
                named = {name: arrays.from_lists(each, self._every[name], file.name) for name, each in chosen.items()}
                if not named:
                    problem = f"{file.name}: names none of the inputs"
                    raise InputError(problem, hint=f"the inputs are {', '.join(self._every)}")
            case Kind.TEXT if len(self._specs) > 1 and self._has_input_columns(file):
                named = arrays.read_table_columns(file, self._specs) or {}
        for name, array in named.items():
            self._arrays[name] = (array, file.name)
        if not named:
            self._files.setdefault(self._main_input(file).name, []).append(file)

    def _has_input_columns(self, file: DataSource) -> bool:
        """Whether the first line of a text file can be the header of a table with a column for each input."""
        first = file.read().partition(b"\n")[0].decode("utf-8", "replace")
        return all(spec.name in first for spec in self._specs)

    def _read_test_set(self, folder: DataSource) -> dict[str, Array]:
        tensors = {}
        for number, spec in enumerate(self._specs):
            path = folder.path / f"input_{number}.pb"
            if path.is_file():
                name, array = arrays.read_tensor(DataSource(str(path)))
                tensors[name if name in self._every else spec.name] = array
        return tensors

    def _main_input(self, file: DataSource) -> TensorSpec:
        """Return the only input that a file of this kind can be for."""
        candidates = main_inputs(self._specs, file.kind)
        if len(candidates) != 1:
            names = ", ".join(self._every) or "none"
            first = next(iter(self._every), "x")
            problem = f"{file.name}: the model has several inputs, and the file could be for any of them"
            if not candidates:
                problem = f"{file.name}: the model has no inputs"
            hint = f"name one, for instance --input {first}={file.name}; the inputs are {names}"
            raise InputError(problem, hint=hint)
        return candidates[0]

    def _unknown_source_error(self, text: str) -> InputError:
        name, mark, value = text.partition("=")
        listing = f"the inputs are {', '.join(self._every) or 'none'}"
        if not mark:
            hint = "use -o FILE to write results" if text.endswith(".json") else "give the path of a file"
            return InputError(f"{text}: no such file", hint=f"{hint}, or --input NAME=SOURCE; {listing}")
        close = closest_match(name, self._every)
        hint = f"did you mean {close}={value}? {listing}" if close else listing
        return InputError(f"--input {text}: the model has no input {name!r}", hint=hint)

    def read(self, context: InputContext, sizes: Sizes) -> dict[str, Reading]:
        """Read all files and literals, audio last, because another input may state its sampling rate."""
        readings: dict[str, Reading] = {}
        for name, (array, origin) in self._arrays.items():
            fitted, _ = arrays.fit_to_input(array, self._every[name], f"{name}={origin}")
            readings[name] = Reading(fitted)
            _learn_sizes(self._every[name], fitted, sizes)
        audio = [name for name, files in self._files.items() if files[0].kind is Kind.AUDIO]
        for name in sorted(self._files, key=audio.__contains__):
            spec = self._every[name]
            if name in readings:
                raise InputError(f"input {name!r} is given twice")
            if name in audio:
                self.rate = context.rate or self._sampling_rate(readings, context, self._files[name][0])
            readings[name] = read_input(self._files[name], spec, replace(context, rate=self.rate))
            _learn_sizes(spec, readings[name].array, sizes)
        return readings

    def _sampling_rate(self, readings: Mapping[str, Reading], context: InputContext, file: DataSource) -> int | None:
        """Return the sampling rate that the model expects, if an input or its metadata states it."""
        rates = (readings[name].array for name in readings if is_rate(self._every[name]))
        rate = next(rates, None)
        if rate is not None:
            return int(rate.reshape(-1)[0])
        file_rate = read_audio(file.read(), file.name).rate
        return choose_rate(tuple(self._every.values()), file_rate, context.properties)


def _missing_input_error(spec: TensorSpec) -> InputError:
    literal = "text" if spec.element is DType.string else "a number or a list"
    return InputError(
        f"input {spec.name!r} has no data, but other inputs have; it takes {spec.type}",
        hint=f"use --input {spec.name}=FILE, or {literal}; --input {spec.name}=@zeros, @ones or @random generates it",
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


def _generate(spec: TensorSpec, source: str, sizes: Sizes, random: np.random.Generator) -> Array:
    for dim in spec.shape or ():
        if isinstance(dim, str):
            sizes.setdefault(dim, 1)
    try:
        return generate_input(spec, sizes, random, source[1:])
    except InputError as error:
        hint = "give smaller sizes with --shape" if spec.shape else f"give a file: --input {spec.name}=file.npy"
        raise InputError(error.problem, hint=hint) from error.__cause__
