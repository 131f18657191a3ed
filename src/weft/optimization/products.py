"""Products of matrices: without the shapes around them, and with a sum as one node."""

from __future__ import annotations

import numpy as np

from weft.ir.graph import Graph, Node
from weft.optimization.facts import ValueFacts
from weft.optimization.rewriting import Rewriting, Workshop

BROADCASTS = 7  # the first opset in which arithmetic broadcasts as numpy does
SUMMED, UNFLATTENED = "products and sums that became one node", "products that need no matrices"


def with_simpler_products(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph with fewer nodes around its products."""
    if work.options.exact or work.version < BROADCASTS:
        return graph
    rewriting = Rewriting(graph, facts, work)
    for node in rewriting.nodes("Reshape"):
        _unflattened(rewriting, node)
    for node in rewriting.nodes("Add"):
        for place in (0, 1):
            if _sums(rewriting, node, place):
                break
    return rewriting.finish()


def _unflattened(rewriting: Rewriting, node: Node) -> None:
    """Rows of many axes as those of a matrix, a product, and the axes again: a product with many axes."""
    product = rewriting.only(node.inputs[0], "Gemm")
    if product is None:
        return
    flat = rewriting.before(product.inputs[0], "Reshape", "Flatten", "Squeeze")
    weights = rewriting.constant(product.inputs[1])
    plain = all(product.attributes.get(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    if flat is None or weights is None or not plain or product.attributes.get("transA", 0):
        return
    source, result = rewriting.shape(flat.inputs[0]), rewriting.shape(node.outputs[0])
    turned = bool(product.attributes.get("transB", 0))
    depth, columns = weights.shape[::-1] if turned else weights.shape
    if source is None or result is None or len(source) < 3 or source[-1] != depth or result != (*source[:-1], columns):
        return
    bias = product.inputs[2] if len(product.inputs) > 2 else ""
    shape = rewriting.shape(bias) if bias else None
    if bias and shape not in ((columns,), (1,), (), (1, columns)):
        return
    limit = rewriting.work.options.growth
    name = product.inputs[1]
    if turned:
        if rewriting.is_shared(name) and limit is not None and weights.nbytes > limit:
            return
        name = rewriting.add_constant(f"{name}_turned", np.ascontiguousarray(weights.T))
    made = rewriting.work.fresh(f"{node.outputs[0]}_product") if bias else node.outputs[0]
    nodes = [rewriting.node("MatMul", (flat.inputs[0], name), (made,))]
    if bias:
        nodes.append(rewriting.node("Add", (made, bias), node.outputs))
    rewriting.put(node, *nodes, merged=[product, flat], done=UNFLATTENED)


def _sums(rewriting: Rewriting, node: Node, place: int) -> bool:
    """A product of matrices and a sum with a number for each column as one node."""
    layer = rewriting.only(node.inputs[place], "MatMul")
    dtype = rewriting.dtype(node.outputs[0])
    if layer is None or dtype is None or not dtype.is_float:
        return False
    added = node.inputs[1 - place]
    shapes = [rewriting.shape(name) for name in (*layer.inputs, added)]
    if any(shape is None for shape in shapes) or rewriting.before(added, "MatMul") is not None:
        return False
    left, right, offset = (shape for shape in shapes if shape is not None)
    if len(left) != 2 or len(right) != 2 or not isinstance(right[1], int) or offset not in ((right[1],), (1, right[1])):
        return False
    rewriting.put(node, rewriting.node("Gemm", (*layer.inputs, added), node.outputs), merged=[layer], done=SUMMED)
    return True
