"""`weft.spark_udf`: a model as a function of Spark's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.batch_inference.arrow_columns import widen
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


def spark_udf(
    model: Any,
    *,
    outputs: Sequence[str] | Mapping[str, str] | None = None,
    batch_size: int | None = None,
    shared: Mapping[str, Any] | None = None,
    ship: Shipping = "auto",
    **options: Any,
) -> Any:
    """Return a model as a pandas UDF, a function of Spark's columns, whose type follows from the model's outputs.

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
    function = BatchFunction(model, outputs=outputs, batch_size=batch_size, shared=shared, ship=ship, **options)
    fields = [(str(column), *_spark_type(spec, function)) for spec, column in function.output_specs]
    run = _make_udf(function, fields)
    series = pandas.Series
    result = series if len(fields) == 1 else pandas.DataFrame
    run.__annotations__ = {"batches": Iterator[tuple[series, ...]], "return": Iterator[result]}  # type: ignore[valid-type]
    types = import_package("pyspark.sql.types", "weft.spark_udf")
    if len(fields) == 1:
        return functions.pandas_udf(run, fields[0][1])
    return functions.pandas_udf(run, types.StructType([types.StructField(name, kind) for name, kind, _ in fields]))


def _make_udf(function: BatchFunction, fields: Sequence[tuple[str, Any, str]]) -> Callable[[Any], Iterator[Any]]:
    inputs = function.required_inputs
    dtypes = {name: dtype for name, _, dtype in fields}

    def predict(batches: Any) -> Iterator[Any]:
        import pandas

        for batch in batches:
            columns = batch if isinstance(batch, tuple) else (batch,)
            if len(columns) != len(inputs):
                problem = f"the model takes {len(inputs)} columns, not {len(columns)}"
                raise InputError(problem, file=function.file, hint=f"in this order: {', '.join(inputs)}")
            table = table_of(pandas.DataFrame(dict(zip(inputs, columns))))
            assert table is not None
            outputs = function.run_columns(table)
            cells = {
                column: _to_cells(outputs[spec.name], dtypes[str(column)]) for spec, column in function.output_specs
            }
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
