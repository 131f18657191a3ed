"""Build models in Python, without a file.

`graph.py` is the public `weft.Graph`, `tensor.py` its tensors with their operators. `functions.py` makes a function of
every op definition (`weft.ops`). `draft.py` holds the nodes and runs each definition on symbolic tensors as its node is
added, so shapes, types and errors are known at the line of the call.
"""
