"""A model in the form that wonnx loads and computes rightly, so that it can be measured on real models at all.

`network.py` fixes the sizes of a model's inputs and computes what is constant then; `writer.py` collects the nodes of
the new model; `forms.py` and `products.py` say what becomes of each op; `prepare.py` is the way from file to file.

The result is an ordinary model of opset 13 that means the same. It differs from the first only where wonnx 0.5.1 has no
such op, refuses the variant, or gives wrong results; the reasons stand with the forms. Models that need integers,
recurrence or control flow while they run have no such form: `NoForm` says why.
"""
