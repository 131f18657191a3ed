"""Models without a file: graphs that grow as Python calls functions on their tensors.

`graph.py` is what users see (`weft.Graph`), `tensor.py` the tensors with their operators, `functions.py` makes a
function of every op's definition (`weft.ops`), and `draft.py` keeps the nodes and runs each definition on symbolic
tensors as its node is added, so that shapes and types, and what is wrong with them, are known at the line that asks.
"""
