"""`weft.batch`: a function from tables to tables, for engines that run it on many machines."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from traceback import walk_stack
from typing import Any

import numpy as np

from weft.batch_inference.batches import make_batches
from weft.batch_inference.map_rows import check_batch_size
from weft.batch_inference.output_columns import collect_columns, empty_column
from weft.batch_inference.row_axes import RowAxes, find_row_axes
from weft.batch_inference.rows import RowReader
from weft.batch_inference.run_batches import name_row, run_batch
from weft.batch_inference.shipped_model import Shipping, ship_model
from weft.batch_inference.tables import Column, Table, table_of
from weft.errors import InputError, short_repr
from weft.ir.arrays import Array
from weft.ir.specs import TensorSpec
from weft.runtime.arguments import listed
from weft.runtime.model import Model

TABLES = "pass a dict of arrays, a pandas DataFrame, an Arrow table or record batch, or an iterator of them"


class BatchFunction:
    """A picklable function that adds the outputs of a model to the columns of a table; see `weft.batch`.

    Ray Data's actors take the class itself: `map_batches(weft.BatchFunction, fn_constructor_args=["model.onnx"])`.
    """

    def __init__(
        self,
        model: Any,
        *,
        columns: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | Mapping[str, str] | None = None,
        batch_size: int | None = None,
        shared: Mapping[str, Any] | None = None,
        ship: Shipping = "auto",
        **options: Any,
    ) -> None:
        chosen = _check_outputs(outputs)
        self._shipped, opened = ship_model(model, ship, None if chosen is None else tuple(chosen), options)
        self._batch_size = check_batch_size(batch_size, opened.file)
        self._shared = shared
        self._columns = _check_columns(columns, opened)
        specs = {spec.name: spec for spec in opened.outputs}
        self.output_specs = [(specs[name], chosen[name] if chosen else name) for name in chosen or specs]
        self.required_inputs = RowReader(opened, RowAxes({}, {}, False), shared).required

    def __call__(self, table: Any) -> Any:
        """Return a table of the same kind: its other columns, and the outputs; an iterator for one of tables."""
        columns = table_of(table)
        if columns is not None:
            return self._run_table(columns)
        if isinstance(table, Iterator):
            return map(self, table)
        problem = f"the function for {self.file} takes tables, not {short_repr(table)}"
        raise InputError(problem, file=self.file, hint=TABLES)

    def run_columns(self, table: Table) -> dict[str, Array]:
        """Return the columns of outputs for all rows of a table."""
        model = self._shipped.load()
        axes = find_row_axes(model)
        reader = RowReader(model, axes, self._shared, self._columns)
        reader.check_columns(table)
        batches = make_batches(reader.read_table(table, 0), axes, self._batch_size)
        # without helpers: the engine runs as many processes as there are cores
        results = []
        for each in (results for batch in batches for results in run_batch(model, axes, batch)):
            if each.error is not None:
                raise name_row(each.error, each.first)
            results.append(each)
        return collect_columns(results, [spec for spec, _ in self.output_specs], axes.outputs)

    def _run_table(self, table: Table) -> Any:
        is_sample = table.kind == "pandas" and _is_called_for_columns()
        columns = self._sample_columns(table.count) if is_sample else self.run_columns(table)
        named = {column: columns[spec.name] for spec, column in self.output_specs}
        return table.build(table.names, named)

    def _sample_columns(self, count: int) -> dict[str, Array]:
        columns = {spec.name: empty_column(spec, dict.fromkeys([spec.name], 0)) for spec, _ in self.output_specs}
        return {name: np.zeros((count, *column.shape[1:]), column.dtype) for name, column in columns.items()}

    def row_rank(self, spec: TensorSpec) -> int | None:
        """Return the rank of a row of an output; None if it depends on the input."""
        if spec.shape is None:
            return None
        return len(spec.shape) - (spec.name in find_row_axes(self._shipped.load()).outputs)

    @property
    def file(self) -> str:
        """The file of the model."""
        return self._shipped.file

    def __repr__(self) -> str:
        """File, and the columns that it reads and writes, on one line."""
        outputs = ", ".join(str(column) for _, column in self.output_specs)
        return f"<weft.BatchFunction {self.file}: {', '.join(map(str, self._columns.values()))} -> {outputs}>"


def batch(
    model: Any,
    *,
    columns: Mapping[str, Any] | None = None,
    outputs: Sequence[str] | Mapping[str, str] | None = None,
    batch_size: int | None = None,
    shared: Mapping[str, Any] | None = None,
    ship: Shipping = "auto",
    **options: Any,
) -> BatchFunction:
    """Return a picklable function that adds the outputs of a model to the columns of a table.

        predict = weft.batch("model.onnx", columns={"x": "pixels"})
        dataset.map_batches(predict)  # Ray Data
        frame.mapInPandas(predict, schema)  # Spark, also mapInArrow
        frame.map_partitions(predict)  # Dask

    It takes a dict of arrays, a pandas or polars DataFrame, an Arrow table or record batch, and returns the same kind;
    an iterator of them gives an iterator. Each row has the bits of a run on that row alone. Processes load the model
    once, on the first call, and share one copy of its weights on each machine. A row that fails raises its error.

    model: what `weft.load` takes, or a loaded model. The function takes the current weights of a model.
    columns: the column of each input whose name differs; a list of columns of numbers is one input.
    outputs: the outputs to add, as a list, or as a dict from outputs to names of columns; None: all, by name.
    batch_size: the most rows of a run; None chooses by the size of rows.
    shared: inputs that are the same for all rows, by name.
    ship: how the model gets to other processes: its "bytes" in the pickle, or the "path" of its file, which must have
        the same content there. "auto" sends the bytes of models up to 16 MiB and of models without a file.
    options: options of `weft.load`, if `model` is not a loaded one; `threads` overrides OMP_NUM_THREADS.
    """
    return BatchFunction(
        model, columns=columns, outputs=outputs, batch_size=batch_size, shared=shared, ship=ship, **options
    )


def _is_called_for_columns() -> bool:
    """Whether Dask calls with a made-up table, whose cells mean nothing, to find out the columns of the result."""
    return "dask.dataframe" in sys.modules and any(
        "emulate" in frame.f_code.co_name and frame.f_globals.get("__name__", "").startswith("dask.dataframe")
        for frame, _ in walk_stack(None)
    )


def _check_columns(columns: Any, model: Model) -> dict[str, Column]:
    """Return the column of every input, or the list of columns that make it."""
    names = [spec.name for spec in (*model.inputs, *model.defaults)]
    hint = f"the inputs are {', '.join(names)}"
    if columns is not None and not isinstance(columns, Mapping):
        problem = f"columns must be a dict from inputs to columns, not {short_repr(columns)}"
        raise InputError(problem, file=model.file, hint=hint)
    for name, column in (columns or {}).items():
        if name not in names:
            raise InputError(f"columns names {short_repr(name)}, which is no input", file=model.file, hint=hint)
        parts = column if isinstance(column, list) else [column]
        if not parts or not all(isinstance(part, Hashable) for part in parts):
            problem = f"the column of input {name!r} is {short_repr(column)}"
            raise InputError(problem, file=model.file, hint="name a column, or a list of columns")
    return {name: (columns or {}).get(name, name) for name in names}


def _check_outputs(outputs: Any) -> dict[str, Hashable] | None:
    """Return the columns of the chosen outputs; None for all."""
    if outputs is None:
        return None
    chosen = dict(outputs) if isinstance(outputs, Mapping) else {name: name for name in listed(outputs, "outputs")}
    columns = list(chosen.values())
    if not all(isinstance(column, Hashable) for column in columns):
        raise InputError(f"outputs must name columns, not {short_repr(columns)}")
    repeated = [column for column in columns if columns.count(column) > 1]
    if repeated:
        raise InputError(f"outputs names the column {repeated[0]!r} twice", hint="name a column for each output")
    return chosen
