"""Read NumPy arrays, ONNX tensors, JSON, CSV tables and values from the command line as inputs."""

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

DEEPEST = 32  # nested lists
LONGEST_VALUE = 1_000_000  # characters
DELIMITERS = ",;\t|"
TABLES = "a text for a numeric input must be JSON, or a table with commas, semicolons or tabs"


def read_npy(source: DataSource) -> Array:
    """Read a .npy file."""
    array = _load_numpy(source)
    if not isinstance(array, np.ndarray):
        raise InputError(f"{source.name}: is an archive, not a single array")
    return array


def list_archive(source: DataSource) -> list[str]:
    """Return the names of the arrays in a .npz file."""
    with _open_archive(source) as archive:
        return list(archive.files)


def read_npz(source: DataSource, name: str) -> Array:
    """Read an array of a .npz file; if it has only one, by any name."""
    with _open_archive(source) as archive:
        files = list(archive.files)
        member = files[0] if name not in files and len(files) == 1 else name
        if member not in files:
            raise InputError(f"{source.name}: has no array {name!r}", hint=f"it has {', '.join(files) or 'none'}")
        _check_memory(source.name, archive, member)
        try:
            return np.asarray(archive[member])
        except Exception as error:  # numpy, zipfile and zlib raise different errors for damaged files
            raise InputError(f"{source.name}: the array {member!r} cannot be read: {error}") from error


def _check_memory(name: str, archive: Any, member: str) -> None:
    """Check that an array fits into memory, since a small archive can hold a huge one."""
    with suppress(KeyError, AttributeError):  # the zip file is not part of numpy's API
        info = next(archive.zip.getinfo(each) for each in (f"{member}.npy", member) if each in archive.zip.namelist())
        left = memory_left()
        if left is not None and info.file_size > left:
            raise InputError(f"{name}: the array {member!r} takes {info.file_size:,} bytes, but only {left:,} are left")


def _open_archive(source: DataSource) -> Any:
    archive = _load_numpy(source)
    if isinstance(archive, np.ndarray):
        raise InputError(f"{source.name}: is a single array, not an archive")
    return archive


def _load_numpy(source: DataSource) -> Any:
    try:
        return np.load(source.path if source.buffer is None else io.BytesIO(source.buffer), allow_pickle=False)
    except Exception as error:  # numpy, zipfile, zlib and pickle raise different errors for damaged files
        raise InputError(f"{source.name}: not a readable .npy or .npz file: {error}") from error


def read_tensor(source: DataSource) -> tuple[str, Array]:
    """Read a TensorProto; its name may be empty."""
    from weft.frontend.tensor_files import parse_tensor  # which imports onnx

    return parse_tensor(source.read_limited(), source.name)


def read_json(text: str, name: str) -> Any:
    """Parse a JSON text."""
    try:
        return json.loads(text, parse_float=parse_number)
    except RecursionError as error:
        raise InputError(f"{name}: lists are nested too deeply") from error
    except ValueError as error:
        raise InputError(f"{name}: is not valid JSON: {error}") from error


def from_lists(content: Any, spec: TensorSpec, name: str) -> Array:
    """Convert nested lists of numbers, texts or booleans to an array for an input."""
    _check_depth(content, name)
    if isinstance(content, dict):
        raise InputError(f"{name}: a JSON object for input {spec.name!r}, which takes {spec.type}")
    element = spec.element
    try:
        with np.errstate(all="ignore"):
            array = np.asarray(content, object if element is DType.string else None)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{name}: the lists have different lengths") from error
    if element is DType.string:
        if not all(isinstance(item, str) for item in array.reshape(-1)):
            raise InputError(f"{name}: input {spec.name!r} takes strings")
        return array
    if array.dtype.kind == "O" and not all(isinstance(item, (int, float)) for item in array.flat):
        raise InputError(f"{name}: has items that are not numbers, or lists of different lengths")
    if array.dtype.kind in "fO" and is_whole(element):  # numpy rounded integers, or has no type for them
        return integer_array(content, array.shape, spec, name)
    try:
        return array.astype(np.float64) if array.dtype.kind == "O" else array
    except OverflowError as error:
        raise InputError(f"{name}: has an integer that is larger than any float64") from error


def _check_depth(content: Any, name: str) -> None:
    depth = 0
    while isinstance(content, list) and content:
        content, depth = content[0], depth + 1
        if depth > DEEPEST:
            raise InputError(f"{name}: lists are nested too deeply")


def parse_value(text: str, spec: TensorSpec) -> Array | None:
    """Parse a value from the command line: a number, a list, or a text for a string input; None if it is none."""
    if spec.element is DType.string and text[:1] not in ("[", '"'):
        return np.asarray(text, object)
    if len(text) > LONGEST_VALUE:
        return None
    constants = {"true": True, "false": False, "nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
    if text.strip().lower() in constants:
        return np.asarray(constants[text.strip().lower()])
    if text.strip()[:1] not in tuple('"[-+.0123456789'):
        return None
    try:
        content = json.loads(text, parse_float=parse_number)
    except RecursionError:
        return None
    except ValueError:
        try:
            content = parse_number(text)
        except ValueError:
            if spec.element is DType.string:
                return np.asarray(text, object)
            if not text.lstrip().startswith("["):
                return None
            hint = "write numbers in brackets, separated by commas: [1, 2, 3]"
            raise InputError(f"--input {spec.name}={text[:60]}: is not a list of numbers", hint=hint) from None
    return from_lists(content, spec, f"--input {spec.name}={text[:40]}")


# -- tables ----------------------------------------------------------------------------------------------------------


def read_table(source: DataSource) -> tuple[list[str] | None, list[list[str]]]:
    """Read a delimited table: the column names, None without a header, and the rows."""
    text = source.read_text()
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=first.count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InputError(f"{source.name}: is not a table: {error}") from error
    if not rows:
        raise InputError(f"{source.name}: is empty")
    names = [cell.strip() for cell in rows[0]] if not any(is_number(cell) for cell in rows[0]) else None
    body = rows if names is None else rows[1:]
    if not body:
        raise InputError(f"{source.name}: has column names, but no rows", hint=TABLES)
    for number, row in enumerate(body, 1 if names is None else 2):
        if len(row) != len(rows[0]):
            problem = f"{source.name}: row {number} has {len(row)} cells, but the first has {len(rows[0])}"
            raise InputError(problem, hint=TABLES)
    return names, body


def read_table_array(source: DataSource, spec: TensorSpec) -> Array:
    """Read a table as an input, one row per sample."""
    names, rows = read_table(source)
    if spec.element is DType.string:
        return np.asarray(rows, object)
    return _parse_rows(source.name, rows, names, spec)


def read_table_columns(source: DataSource, specs: Sequence[TensorSpec]) -> dict[str, Array] | None:
    """Read the columns that are named like inputs, each as [rows, 1]; None if an input has no column."""
    names, rows = read_table(source)
    if names is None or not {spec.name for spec in specs} <= set(names):
        return None
    columns = {}
    for spec in specs:
        cells = [[row[names.index(spec.name)]] for row in rows]
        is_text = spec.element is DType.string
        columns[spec.name] = (
            np.asarray(cells, object) if is_text else _parse_rows(source.name, cells, [spec.name], spec)
        )
    return columns


def _parse_rows(name: str, rows: Sequence[Sequence[str]], names: Sequence[str] | None, spec: TensorSpec) -> Array:
    element = spec.element if is_whole(spec.element) else None
    numbers = np.empty((len(rows), len(rows[0])), np.float64 if element is None else element.numpy)
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            try:
                number = parse_number(cell) if cell.strip() else np.nan
                numbers[row, column] = number if element is None else as_integer(number, element)
            except (ValueError, OverflowError) as error:
                where = f"column {column + 1}" if names is None else f"column {names[column]!r}"
                position = f"{name}: row {row + (1 if names is None else 2)} has {cell[:40]!r} in {where}"
                if not is_number(cell) and cell.strip():
                    raise InputError(f"{position}, which is not a number", hint=TABLES) from None
                raise InputError(f"{position}, but input {spec.name!r} takes {spec.element}: {error}") from None
    return numbers


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# -- conversion to an input ------------------------------------------------------------------------------------------


def fit_to_input(array: Array, spec: TensorSpec, name: str) -> tuple[Array, list[str]]:
    """Convert an array to an input's type and rank without changing integers, and note the changes."""
    notes: list[str] = []
    array = _convert_elements(array, spec, name, notes)
    shape = spec.shape
    if shape is not None and array.ndim < len(shape):
        ones = (1,) * (len(shape) - array.ndim)
        extents = next((each for each in (ones + array.shape, array.shape + ones) if _fits_shape(shape, each)), None)
        if extents is not None:
            array = array.reshape(extents)
            notes.append(f"as [{', '.join(map(str, extents))}]")
    elif shape is not None and array.size == 1 and array.ndim > len(shape) and all(dim == 1 for dim in shape):
        array = array.reshape((1,) * len(shape))
    _check_shape(array, spec, name)
    return array, notes


def _fits_shape(declared: Sequence[int | str], shape: Sequence[int]) -> bool:
    """Whether an input takes arrays of a shape."""
    return len(declared) == len(shape) and all(a == b for a, b in zip(declared, shape) if isinstance(a, int))


def _check_shape(array: Array, spec: TensorSpec, name: str) -> None:
    shape = spec.shape
    if shape is None:
        return
    if not _fits_shape(shape, array.shape):
        actual, declared = (", ".join(map(str, dims)) for dims in (array.shape, shape))
        raise InputError(
            f"{name}: has the shape [{actual}], but input {spec.name!r} takes [{declared}]",
            hint="named dims can have any size; the others are fixed in the model",
        )


def _convert_elements(array: Array, spec: TensorSpec, name: str, notes: list[str]) -> Array:
    element = spec.element
    if element is None or array.dtype == element.numpy:
        return array
    if element is DType.string:
        if not is_textual(array):
            raise InputError(f"{name}: has numbers, but input {spec.name!r} takes strings")
        try:
            texts = [str(decode_bytes(item)) for item in array.reshape(-1)]
        except Exception as error:  # numpy does not check the texts in files
            raise InputError(f"{name}: has invalid strings: {error}") from error
        result = np.empty(len(texts), object)
        result[:] = texts
        return np.asarray(result.reshape(array.shape))
    if is_textual(array) and array.dtype.kind == "V":
        if element.numpy.isbuiltin == 1 or element.numpy.itemsize != array.dtype.itemsize:
            raise InputError(f"{name}: has {array.dtype}, but input {spec.name!r} takes {element}")
        return np.asarray(array.view(element.numpy))  # numpy.save stores bfloat16 as untyped bytes
    if array.dtype.kind in "OUSTMm" or array.dtype.names is not None:
        raise InputError(f"{name}: has {array.dtype}, but input {spec.name!r} takes {element}")
    if array.dtype.kind == "c" and not element.is_complex:
        raise InputError(f"{name}: has complex numbers, but input {spec.name!r} takes {element}")
    if array.size > 1:
        notes.append(f"{array.dtype} as {element}")
    return convert(array, spec, name)
