"""Run a model over many rows: `Model.map`, `weft.batch`, `weft.spark_udf` and `weft.ray_deployment`.

```
arrays, tables, datasets, iterables
   │  rows.py, columns.py       read rows, and columns of tables, as segments
   ▼
Segment                         consecutive rows with arrays of one shape
   │  batches.py                group segments of equal shapes, within a window of rows
   ▼
Batch
   │  run_batches.py            prepare batches beside the runs
   ▼
RowResults                      outputs of consecutive rows, or the error of one
   │  map_rows.py: rows in order; batch_function.py: columns (output_columns.py)
   ▼
dicts, or a table               tables.py, arrow_columns.py
```

`shipped_model.py` sends models to other processes, for `batch_function.py`, `spark.py` and `ray_serve.py`.
"""
