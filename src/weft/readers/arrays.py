"""Numbers and texts as inputs: arrays of NumPy, tensors of ONNX, JSON, tables with commas, and what is typed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.readers.content import DataSource
from weft.readers.numbers import as_integer, convert, integer_array, is_whole, parse_number
from weft.runtime.array_likes import decode_bytes, is_textual
from weft.runtime.available_memory import memory_left

DEEPEST = 32  # lists in lists
LARGEST_TYPED = 1_000_000  # characters
DELIMITERS = ",;\t|"
TABLES = "a text for an input of numbers is read as JSON, or as a table with commas, semicolons or tabs"


def read_npy(source: DataSource) -> Array:
    """The array of a .npy file."""
    found = _load(source)
    if not isinstance(found, np.ndarray):
        raise InputError(f"{source.name}: is an archive, and no single array")
    return found


def archive_arrays(source: DataSource) -> list[str]:
    """The names of the arrays in a .npz file."""
    with _archive(source) as archive:
        return list(archive.files)


def read_npz(source: DataSource, name: str) -> Array:
    """One array of a .npz file; where it has but one, that one by any name."""
    with _archive(source) as archive:
        files = list(archive.files)
        wanted = files[0] if name not in files and len(files) == 1 else name
        if wanted not in files:
            raise InputError(f"{source.name}: holds no array {name!r}", hint=f"it has {', '.join(files) or 'none'}")
        _check_room(source.name, archive, wanted)
        try:
            return np.asarray(archive[wanted])
        except Exception as error:  # numpy, zipfile and zlib each have errors of their own for damaged files
            raise InputError(f"{source.name}: its array {wanted!r} cannot be read: {error}") from error


def _check_room(name: str, archive: Any, member: str) -> None:
    """A small archive may hold more than there is memory for."""
    with suppress(KeyError, AttributeError):  # numpy keeps its archives to itself
        held = next(archive.zip.getinfo(each) for each in (f"{member}.npy", member) if each in archive.zip.namelist())
        left = memory_left()
        if left is not None and held.file_size > left:
            raise InputError(
                f"{name}: its array {member!r} takes {held.file_size:,} bytes, and there are {left:,} left"
            )


def _archive(source: DataSource) -> Any:
    found = _load(source)
    if isinstance(found, np.ndarray):
        raise InputError(f"{source.name}: is one array, and no archive of several")
    return found


def _load(source: DataSource) -> Any:
    try:
        return np.load(source.path if source.held is None else io.BytesIO(source.held), allow_pickle=False)
    except Exception as error:  # numpy, zipfile, zlib and pickle each have errors of their own for damaged files
        raise InputError(f"{source.name}: not a readable .npy or .npz file: {error}") from error


def read_tensor(source: DataSource) -> tuple[str, Array]:
    """A TensorProto: its name, which may be empty, and its elements."""
    from weft.frontend.tensor_files import parse_tensor  # which imports onnx

    return parse_tensor(source.limited(), source.name)


def read_json(text: str, name: str) -> Any:
    """What a JSON text says; InputError where it is none."""
    try:
        return json.loads(text, parse_float=parse_number)
    except RecursionError as error:
        raise InputError(f"{name}: lists lie too deep in each other") from error
    except ValueError as error:
        raise InputError(f"{name}: is no JSON: {error}") from error


def array_of(content: Any, spec: TensorSpec, name: str) -> Array:
    """Lists in lists of numbers, texts and truth values as an array of the input's type."""
    _check_depth(content, name)
    if isinstance(content, dict):
        raise InputError(f"{name}: {{…}} for input {spec.name!r}, which takes {spec.type}")
    wanted = spec.element
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(content, object if wanted is DType.string else None)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{name}: the lists are not all of one length") from error
    if wanted is DType.string:
        if not all(isinstance(each, str) for each in found.reshape(-1)):
            raise InputError(f"{name}: input {spec.name!r} takes texts")
        return found
    if found.dtype.kind == "O" and not all(isinstance(each, (int, float)) for each in found.flat):
        raise InputError(f"{name}: holds what is no number, or lists that are not all of one length")
    if found.dtype.kind in "fO" and is_whole(wanted):  # numpy has rounded integers, or has no type for them
        return integer_array(content, found.shape, spec, name)
    try:
        return found.astype(np.float64) if found.dtype.kind == "O" else found
    except OverflowError as error:
        raise InputError(f"{name}: holds an integer that is larger than any float64") from error


def _check_depth(content: Any, name: str) -> None:
    depth = 0
    while isinstance(content, list) and content:
        content, depth = content[0], depth + 1
        if depth > DEEPEST:
            raise InputError(f"{name}: lists lie too deep in each other")


def typed(text: str, spec: TensorSpec) -> Array | None:
    """What was typed for an input: a number, a list, a text for an input of texts; None where it is neither."""
    if spec.element is DType.string and text[:1] not in ("[", '"'):
        return np.asarray(text, object)
    if len(text) > LARGEST_TYPED:
        return None
    plain = {"true": True, "false": False, "nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
    if text.strip().lower() in plain:
        return np.asarray(plain[text.strip().lower()])
    if text.strip()[:1] not in tuple('"[-+.0123456789'):
        return None
    try:
        found = json.loads(text, parse_float=parse_number)
    except RecursionError:
        return None
    except ValueError:
        try:
            found = parse_number(text)
        except ValueError:
            if spec.element is DType.string:
                return np.asarray(text, object)
            if not text.lstrip().startswith("["):
                return None
            hint = "write numbers with commas between, in brackets: [1, 2, 3]"
            raise InputError(f"--input {spec.name}={text[:60]}: is no list of numbers", hint=hint) from None
    return array_of(found, spec, f"--input {spec.name}={text[:40]}")


# -- tables ----------------------------------------------------------------------------------------------------------


def read_table(source: DataSource) -> tuple[list[str] | None, list[list[str]]]:
    """The names of the columns, where the first row has some, and the other rows, of a text with commas or the like."""
    text = source.text()
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=first.count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InputError(f"{source.name}: is no table: {error}") from error
    if not rows:
        raise InputError(f"{source.name}: is empty")
    names = [cell.strip() for cell in rows[0]] if not any(_is_number(cell) for cell in rows[0]) else None
    body = rows if names is None else rows[1:]
    if not body:
        raise InputError(f"{source.name}: has names of columns, and no rows", hint=TABLES)
    for number, row in enumerate(body, 1 if names is None else 2):
        if len(row) != len(rows[0]):
            problem = f"{source.name}: row {number} has {len(row)} cells, and the first {len(rows[0])}"
            raise InputError(problem, hint=TABLES)
    return names, body


def table_array(source: DataSource, spec: TensorSpec) -> Array:
    """A table as an input, a row for each sample."""
    names, rows = read_table(source)
    if spec.element is DType.string:
        return np.asarray(rows, object)
    return _numbers(source.name, rows, names, spec)


def table_columns(source: DataSource, specs: Sequence[TensorSpec]) -> dict[str, Array] | None:
    """The columns of a table that are named like inputs, each [rows, 1]; None where not every input has one."""
    names, rows = read_table(source)
    if names is None or not {spec.name for spec in specs} <= set(names):
        return None
    found = {}
    for spec in specs:
        column = [[row[names.index(spec.name)]] for row in rows]
        texts = spec.element is DType.string
        found[spec.name] = np.asarray(column, object) if texts else _numbers(source.name, column, [spec.name], spec)
    return found


def _numbers(name: str, rows: Sequence[Sequence[str]], names: Sequence[str] | None, spec: TensorSpec) -> Array:
    element = spec.element if is_whole(spec.element) else None
    numbers = np.empty((len(rows), len(rows[0])), np.float64 if element is None else element.numpy)
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            try:
                number = parse_number(cell) if cell.strip() else np.nan
                numbers[row, column] = number if element is None else as_integer(number, element)
            except (ValueError, OverflowError) as error:
                where = f"column {column + 1}" if names is None else f"column {names[column]!r}"
                place = f"{name}: row {row + (1 if names is None else 2)} has {cell[:40]!r} in {where}"
                if not _is_number(cell) and cell.strip():
                    raise InputError(f"{place}, which is no number", hint=TABLES) from None
                raise InputError(f"{place}, but input {spec.name!r} takes {spec.element}: {error}") from None
    return numbers


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# -- into the form of an input ---------------------------------------------------------------------------------------


def fitted(array: Array, spec: TensorSpec, name: str) -> tuple[Array, list[str]]:
    """An array in an input's type and rank, where that changes no number that counts; and what was changed."""
    told: list[str] = []
    array = _converted(array, spec, name, told)
    shape = spec.shape
    if shape is not None and array.ndim < len(shape):
        ones = (1,) * (len(shape) - array.ndim)
        extents = next((each for each in (ones + array.shape, array.shape + ones) if _fits(shape, each)), None)
        if extents is not None:
            array = array.reshape(extents)
            told.append(f"as [{', '.join(map(str, extents))}]")
    elif shape is not None and array.size == 1 and array.ndim > len(shape) and all(dim == 1 for dim in shape):
        array = array.reshape((1,) * len(shape))
    _check_shape(array, spec, name)
    return array, told


def _fits(declared: Sequence[int | str], shape: Sequence[int]) -> bool:
    """Whether a shape is one that an input takes."""
    return len(declared) == len(shape) and all(a == b for a, b in zip(declared, shape) if isinstance(a, int))


def _check_shape(array: Array, spec: TensorSpec, name: str) -> None:
    shape = spec.shape
    if shape is None:
        return
    if not _fits(shape, array.shape):
        given, wanted = (", ".join(map(str, dims)) for dims in (array.shape, shape))
        raise InputError(
            f"{name}: has the shape [{given}], but input {spec.name!r} takes [{wanted}]",
            hint="dims with names can have any size; the others are fixed in the model",
        )


def _converted(array: Array, spec: TensorSpec, name: str, told: list[str]) -> Array:
    wanted = spec.element
    if wanted is None or array.dtype == wanted.numpy:
        return array
    if wanted is DType.string:
        if not is_textual(array):
            raise InputError(f"{name}: holds numbers, and input {spec.name!r} takes texts")
        try:
            texts = [str(decode_bytes(each)) for each in array.reshape(-1)]
        except Exception as error:  # numpy takes texts from files as they are, and Python finds what is wrong with them
            raise InputError(f"{name}: holds texts that are none: {error}") from error
        result = np.empty(len(texts), object)
        result[:] = texts
        return np.asarray(result.reshape(array.shape))
    if is_textual(array) and array.dtype.kind == "V":
        if wanted.numpy.isbuiltin == 1 or wanted.numpy.itemsize != array.dtype.itemsize:
            raise InputError(f"{name}: holds {array.dtype}, and input {spec.name!r} takes {wanted}")
        return np.asarray(array.view(wanted.numpy))  # numpy.save stores bfloat16 as bytes without a type
    if array.dtype.kind in "OUSTMm" or array.dtype.names is not None:
        raise InputError(f"{name}: holds {array.dtype}, and input {spec.name!r} takes {wanted}")
    if array.dtype.kind == "c" and not wanted.is_complex:
        raise InputError(f"{name}: holds complex numbers, and input {spec.name!r} takes {wanted}")
    if array.size > 1:
        told.append(f"{array.dtype} as {wanted}")
    return convert(array, spec, name)
