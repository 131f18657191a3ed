"""Models with fewer nodes: an ONNX model in, one that computes the same out, still ONNX.

`optimize.py` is the way on one page: read, learn what is known of each value, rewrite until nothing changes, write. All
of it is from graph to graph (ir/graph.py). What a value is (`facts.py`) is told by the ops' own definitions, so that
folding and the search for nodes that do nothing know no op by name; only what writes nodes does.
"""
