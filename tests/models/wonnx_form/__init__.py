"""Rewrite models so that wonnx loads them and computes them correctly, to benchmark it on real models.

`network.py` fixes the input sizes and folds constants, `writer.py` collects the nodes of the new model, `forms.py`,
`layouts.py` and `products.py` rewrite each op, and `prepare.py` converts a file.

The result is an equivalent model of opset 13. It differs only where wonnx 0.5.1 lacks an op, rejects a variant or gives
wrong results; docstrings state the reasons. Models that need integers, recurrence or control flow at run time cannot be
rewritten: `NoForm` says why.
"""
