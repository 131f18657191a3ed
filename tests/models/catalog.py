"""The models of models.tsv: their files, inputs, and random data for them.

A dynamic dim is identified by where it stands. Dims that must change together (a batch shared by several inputs) form
one `DimGroup`; sizes are given per group, so that inputs made for them always fit each other.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

HERE = Path(__file__).parent
MODELS_TSV = HERE / "models.tsv"
MORE_TSV = HERE / "more_models.tsv"  # further ones, with which weft is compared and nothing is tested
FETCHED = HERE.parent.parent / ".models"
MORE = "more"  # the folder of further ones there

Array = np.ndarray[Any, Any]
Place = tuple[str, int]
"""An input's name and an axis of it."""


@dataclass(frozen=True, slots=True)
class Normal:
    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class Between:
    """Integers from `low` to `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class FixedValues:
    """Fixed values, repeated where the shape grows; one that equals a dynamic size of another input follows it."""

    values: tuple[int, ...]


Values = Normal | Between | FixedValues


@dataclass(frozen=True, slots=True)
class InputSpec:
    name: str
    dtype: str
    shape: tuple[int, ...]  # a shape that runs
    declared: tuple[int | str, ...]  # as in the file; "?" where it gives neither a size nor a name
    values: Values


@dataclass(frozen=True, slots=True)
class DimGroup:
    """Dynamic dims that have one size."""

    name: str
    size: int  # in the shape that runs
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class CatalogModel:
    name: str
    kind: str  # "pypi", "skeleton" or "onnx wheel"
    source: str  # a pinned requirement, a skeleton's path beside the list, or "onnx"
    member: str  # the model's path inside its wheel
    sha256: str
    inputs: tuple[InputSpec, ...]
    bench: bool
    noise: float  # onnxruntime against itself, relative to the largest output
    folder: str = ""  # below .models

    @property
    def file(self) -> Path:
        """The path of the model, whether or not it exists."""
        if self.kind == "onnx wheel":
            return Path(onnx.__file__).parent.parent / self.member
        return FETCHED / self.folder / f"{self.name}.onnx"

    @property
    def skeleton(self) -> Path:
        return HERE / self.source

    @property
    def missing(self) -> str | None:
        """Why the model cannot be tested, or None."""
        if not self.file.exists():
            advice = "" if self.kind == "onnx wheel" else f"; `scripts/fetch-models {self.name}` gets it"
            return f"{self.file.name} is not here{advice}"
        if self.sha256 and _digest(self.file, self.file.stat().st_mtime_ns) != self.sha256:
            return f"{self.file.name} is not the file that the list means; `scripts/fetch-models {self.name}` gets it"
        return None

    @property
    def path(self) -> Path | None:
        return self.file if self.missing is None else None


@cache
def _digest(file: Path, _modified: int) -> str:
    """Hash a file once per process; the list has 1.7 GB, and several tests use each model."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def load_catalog(more: bool = False) -> tuple[CatalogModel, ...]:
    """Read the models of the catalog, or the further ones."""
    with (MORE_TSV if more else MODELS_TSV).open(newline="", encoding="utf-8") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return tuple(_model(row, MORE if more else "") for row in rows)


def dim_groups(model: CatalogModel) -> tuple[DimGroup, ...]:
    """The dynamic dims, in input order. Equal names with unequal sizes are different dims: files do lie about names."""
    groups: list[list[tuple[Place, str, int]]] = []
    for spec in model.inputs:
        for axis, (declared, size) in enumerate(zip(spec.declared, spec.shape, strict=True)):
            if isinstance(declared, str):
                member = ((spec.name, axis), declared, size)
                home = next((group for group in groups if any(_same_dim(member, other) for other in group)), None)
                if home is None:
                    groups.append([member])
                else:
                    home.append(member)
    named: dict[str, DimGroup] = {}
    for group in groups:
        (input_name, axis), declared, size = group[0]
        name = f"{input_name}.{axis}" if _anonymous(declared) or declared in named else declared
        named[name] = DimGroup(name, size, tuple(place for place, _, _ in group))
    return tuple(named.values())


def size_variants(model: CatalogModel) -> tuple[dict[str, int], ...]:
    """Sizes to try, by group name: the ones that run; batches of 1, 2 and 3; each other dim halved, and made odd.

    After the first, what is less to compute comes first.
    """
    groups = dim_groups(model)
    sample = {group.name: group.size for group in groups}
    variants: list[dict[str, int]] = []
    for group in groups:
        is_batch = any(axis == 0 for _, axis in group.places)
        sizes = (1, 2, 3) if is_batch else (max(1, group.size // 2), (group.size // 3) | 1)
        variants += [{**sample, group.name: size} for size in sizes if size != group.size]
    return sample, *sorted(variants, key=lambda sizes: prod(sizes.values()))


def random_inputs(model: CatalogModel, sizes: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, Array]:
    """Inputs for the given sizes (by group name; the sample's where left out), the same for the same seed."""
    generator = np.random.default_rng(seed)
    resized: dict[Place, int] = {}
    follows: dict[int, int] = {}
    for group in dim_groups(model):
        size = (sizes or {}).get(group.name, group.size)
        resized |= dict.fromkeys(group.places, size)
        if group.size > 1:
            follows[group.size] = size
    return {spec.name: _random_input(spec, resized, follows, generator) for spec in model.inputs}


def _random_input(
    spec: InputSpec, resized: Mapping[Place, int], follows: Mapping[int, int], generator: np.random.Generator
) -> Array:
    shape = tuple(resized.get((spec.name, axis), size) for axis, size in enumerate(spec.shape))
    match spec.values:
        case Normal(mean, std):
            return np.asarray(generator.normal(mean, std, shape)).astype(spec.dtype)
        case Between(low, high):
            return np.asarray(generator.integers(low, high, shape, endpoint=True)).astype(spec.dtype)
        case FixedValues(values):
            return np.resize(np.array([follows.get(value, value) for value in values], dtype=spec.dtype), shape)


def _same_dim(first: tuple[Place, str, int], second: tuple[Place, str, int]) -> bool:
    ((first_input, _), first_name, first_size), ((second_input, _), second_name, second_size) = first, second
    if first_size != second_size:
        return False
    if first_name == second_name and not _anonymous(first_name):
        return True
    return first_input != second_input and (_anonymous(first_name) or _anonymous(second_name))


def _anonymous(name: str) -> bool:
    return name == "?" or name.startswith("unk__")


def _model(row: Mapping[str, str], folder: str = "") -> CatalogModel:
    declared = dict(_declared(row["declared shapes"]))
    return CatalogModel(
        name=row["name"],
        kind=row["kind"],
        source=row["source"],
        member=row["path"],
        sha256=row["sha256"],
        inputs=tuple(_inputs(row["inputs (a shape that runs; values)"], declared)),
        bench=row["bench"] == "yes",
        noise=_number(row["noise"]),
        folder=folder,
    )


def _declared(column: str) -> Iterator[tuple[str, tuple[int | str, ...]]]:
    """`name:type[dim, dim]; ...`, where the name may have colons of its own."""
    for entry in column.split("; "):
        name, _, dims = _parsed(r"(.+):(\w+)\[(.*)\]", entry).groups()
        yield name, tuple(int(dim) if dim.isdigit() else dim for dim in dims.split(", ") if dim)


def _inputs(column: str, declared: Mapping[str, tuple[int | str, ...]]) -> Iterator[InputSpec]:
    """`name dtype[sizes] values; ...`, or a dict from name to sizes, which means standard normal float32."""
    if column.startswith("{"):
        for name, shape in ast.literal_eval(column).items():
            yield InputSpec(name, "float32", tuple(shape), declared[name], Normal(0.0, 1.0))
        return
    for entry in column.split("; "):
        name, dtype, sizes, values = _parsed(r"(\S+) (\w+)\[([\d, ]*)\] ?(.*)", entry).groups()
        shape = tuple(int(size) for size in sizes.split(", ") if size)
        yield InputSpec(name, dtype, shape, declared[name], _values(values))


def _values(text: str) -> Values:
    if text.startswith("~N"):
        mean, std = _parsed(r"~N\((.+),(.+)\)", text).groups()
        return Normal(float(mean), float(std))
    if text.startswith("in "):
        low, high = _parsed(r"in (-?\d+)\.\.(-?\d+)", text).groups()
        return Between(int(low), int(high))
    return FixedValues(tuple(ast.literal_eval(_parsed(r"=(\[.*\])", text).group(1))))


def _parsed(pattern: str, text: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ValueError(f"{MODELS_TSV.name}: cannot read {text!r}")
    return match


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
