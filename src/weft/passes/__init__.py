"""Passes (TensorProgram -> TensorProgram), one per file, and `PIPELINE`, the order in which they run.

A pass takes a program and an evaluator, which computes primitives in numpy for constant folding. Bodies of control flow
are programs too: a pass begins with `everywhere`, which applies it to them.
"""

from __future__ import annotations

from weft.passes.arithmetic import simplify_arithmetic
from weft.passes.captures import embed_bytes, embed_constants
from weft.passes.channel_shuffles import move_shuffles
from weft.passes.crop_filters import crop_filters
from weft.passes.dead_code import drop_unused
from weft.passes.dedupe import merge_duplicates
from weft.passes.empty_tensors import fold_empty_tensors
from weft.passes.equal_sizes import unify_sizes
from weft.passes.fold import fold_constants
from weft.passes.hoist import hoist_products
from weft.passes.host_steps import group_host_steps
from weft.passes.lookup_tables import use_lookup_tables
from weft.passes.movement import simplify_movement
from weft.passes.parallel_products import join_parallel_products
from weft.passes.quantized_products import use_integer_products
from weft.passes.reciprocals import multiply_by_reciprocals
from weft.passes.renumber import number_values
from weft.passes.requantize import join_scales
from weft.passes.rewrite import Pass
from weft.passes.scales import fold_scales
from weft.passes.unflatten import unflatten_rows

PIPELINE: tuple[Pass, ...] = (
    unify_sizes,
    fold_empty_tensors,
    embed_bytes,
    use_integer_products,
    fold_constants,
    crop_filters,
    embed_constants,
    hoist_products,
    simplify_arithmetic,
    simplify_movement,
    drop_unused,
    unflatten_rows,
    join_parallel_products,
    simplify_movement,
    merge_duplicates,
    use_lookup_tables,
    join_scales,
    multiply_by_reciprocals,
    fold_scales,
    move_shuffles,
    drop_unused,
    group_host_steps,
    number_values,
)

__all__ = ["PIPELINE", "Pass"]
