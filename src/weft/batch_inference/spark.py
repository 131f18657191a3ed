"""`weft.spark_udf`: a model as a function of Spark's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.batch_inference.arrow_columns import make_column, widen
from weft.batch_inference.batch_function import BatchFunction
from weft.batch_inference.optional_packages import import_package
from weft.batch_inference.shipped_model import Shipping
from weft.batch_inference.tables import table_of
from weft.errors import InputError
from weft.ir.arrays import Array

if TYPE_CHECKING:
    from weft.ir.specs import TensorSpec

_SPARK_TYPES = {
    "b1": ("BooleanType", "b1"),
    "i1": ("ByteType", "i1"),
    "i2": ("ShortType", "i2"),
    "i4": ("IntegerType", "i4"),
    "i8": ("LongType", "i8"),
    "u1": ("ShortType", "i2"),
    "u2": ("IntegerType", "i4"),
    "u4": ("LongType", "i8"),
    "f2": ("FloatType", "f4"),
    "f4": ("FloatType", "f4"),
    "f8": ("DoubleType", "f8"),
}
"""The Spark type and the dtype of its cells by the dtype of an output; Spark has no unsigned types."""
Fields = Sequence[tuple[str, Any, str]]  # the name, the Spark type and the dtype of each output


def spark_udf(
    model: Any,
    *,
    outputs: Sequence[str] | Mapping[str, str] | None = None,
    batch_size: int | None = None,
    shared: Mapping[str, Any] | None = None,
    ship: Shipping = "auto",
    **options: Any,
) -> Any:
    """Return a model as a UDF of Spark, a function of columns whose type follows from the outputs of the model.

        frame.withColumn("y", weft.spark_udf("model.onnx")("x"))

    Its arguments are the inputs, in order. Its result is the only output, or a struct of all: a number, or arrays
    nested as deep as the output has dims besides that of the batch. SQL can call it:
    `spark.udf.register("classify", udf)`.

    model: what `weft.load` takes, or a loaded model.
    outputs: the outputs to compute, as a list, or as a dict from outputs to names in the struct; None: all.
    batch_size, shared, ship, options: those of `weft.batch`.
    """
    functions = import_package("pyspark.sql.functions", "weft.spark_udf", "weft-onnx[spark]")
    import_package("pyarrow", "weft.spark_udf", "weft-onnx[spark]")
    pandas: Any = import_package("pandas", "weft.spark_udf", "weft-onnx[spark]")
    types = import_package("pyspark.sql.types", "weft.spark_udf")
    function = BatchFunction(model, outputs=outputs, batch_size=batch_size, shared=shared, ship=ship, **options)
    fields = [(str(column), *_spark_type(spec, function)) for spec, column in function.output_specs]
    struct = types.StructType([types.StructField(name, kind) for name, kind, _ in fields])
    result_type = fields[0][1] if len(fields) == 1 else struct
    if hasattr(functions, "arrow_udf"):  # from Spark 4.1 on, which converts no row to pandas
        arrays = import_package("pyarrow", "weft.spark_udf").Array
        return functions.arrow_udf(_annotate(_make_arrow_udf(function, fields), arrays, arrays), result_type)
    result = pandas.Series if len(fields) == 1 else pandas.DataFrame
    return functions.pandas_udf(_annotate(_make_pandas_udf(function, fields), pandas.Series, result), result_type)


def _annotate(run: Callable[[Any], Iterator[Any]], column: Any, result: Any) -> Callable[[Any], Iterator[Any]]:
    """Add the types from which Spark finds the form of a function."""
    run.__annotations__ = {"batches": Iterator[tuple[column, ...]], "return": Iterator[result]}
    return run


def _name_columns(function: BatchFunction, batch: Any) -> dict[str, Any]:
    """Return the columns of a batch by the names of the inputs."""
    inputs = function.required_inputs
    columns = batch if isinstance(batch, tuple) else (batch,)
    if len(columns) != len(inputs):
        problem = f"the model takes {len(inputs)} columns, not {len(columns)}"
        raise InputError(problem, file=function.file, hint=f"in this order: {', '.join(inputs)}")
    return dict(zip(inputs, columns))


def _run(function: BatchFunction, source: Any) -> list[Array]:
    """Return the columns of all outputs for the rows of a table."""
    table = table_of(source)
    assert table is not None
    outputs = function.run_columns(table)
    return [outputs[spec.name] for spec, _ in function.output_specs]


def _make_arrow_udf(function: BatchFunction, fields: Fields) -> Callable[[Any], Iterator[Any]]:
    def predict(batches: Any) -> Iterator[Any]:
        pyarrow = import_package("pyarrow", "weft.spark_udf")
        for batch in batches:
            outputs = _run(function, pyarrow.table(_name_columns(function, batch)))
            columns = [_to_arrow(array, dtype, name) for array, (name, _, dtype) in zip(outputs, fields)]
            names = [name for name, _, _ in fields]
            yield columns[0] if len(columns) == 1 else pyarrow.StructArray.from_arrays(columns, names)

    return predict


def _to_arrow(array: Array, dtype: str, name: str) -> Any:
    """Return a column in the dtype of a Spark type."""
    if array.dtype == object:  # strings, or rows of different shapes
        rows = [_to_dtype(row, dtype) for row in array]
        array = np.empty(len(rows), object)
        for index, row in enumerate(rows):
            array[index] = row
        return make_column(array, name)
    return make_column(_to_dtype(array, dtype), name)


def _to_dtype(row: Any, dtype: str) -> Any:
    return widen(row).astype(dtype) if isinstance(row, np.ndarray) else row


def _make_pandas_udf(function: BatchFunction, fields: Fields) -> Callable[[Any], Iterator[Any]]:
    def predict(batches: Any) -> Iterator[Any]:
        import pandas

        for batch in batches:
            outputs = _run(function, pandas.DataFrame(_name_columns(function, batch)))
            cells = {name: _to_cells(array, dtype) for array, (name, _, dtype) in zip(outputs, fields)}
            yield pandas.DataFrame(cells) if len(cells) > 1 else pandas.Series(next(iter(cells.values())))

    return predict


def _to_cells(array: Array, dtype: str) -> Any:
    """Return numbers, or a list of nested lists, in the dtype of a Spark type."""
    if array.ndim == 1 and array.dtype != object:
        return widen(array).astype(dtype)
    return [_to_lists(row, dtype) for row in array]


def _to_lists(row: Any, dtype: str) -> Any:
    """Return a row as lists of one-dimensional arrays, which Arrow can convert."""
    if not isinstance(row, np.ndarray) or row.ndim == 0:
        return row
    return widen(row).astype(dtype) if row.ndim == 1 else [_to_lists(each, dtype) for each in row]


def _spark_type(spec: TensorSpec, function: BatchFunction) -> tuple[Any, str]:
    """Return the Spark type of an output's rows, and the dtype of their elements."""
    types = import_package("pyspark.sql.types", "weft.spark_udf")
    rank = function.row_rank(spec)
    if spec.dtype is None or rank is None:
        reason = f"is a {spec.type}" if spec.dtype is None else "has a rank that depends on the input"
        names = [each.name for each, _ in function.output_specs if each is not spec]
        hint = f"choose others: outputs={names!r}" if names else "use weft.batch with mapInPandas and your own schema"
        raise InputError(f"output {spec.name!r} {reason}, which no Spark type fits", file=function.file, hint=hint)
    if spec.element == "string":
        name, dtype = "StringType", "O"
    else:
        numpy = widen(np.empty(0, spec.dtype)).dtype
        name, dtype = _SPARK_TYPES.get(f"{numpy.kind}{numpy.itemsize}", ("", ""))
        if not name:
            problem = f"output {spec.name!r} has type {spec.element}, which Spark lacks"
            raise InputError(problem, file=function.file, hint="choose other outputs, or cast it in the model")
    kind = getattr(types, name)()
    for _ in range(rank):
        kind = types.ArrayType(kind)
    return kind, dtype
