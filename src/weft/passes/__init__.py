"""TensorProgram -> TensorProgram, one file a pass, and the one order in which they run.

A pass is a function of a program and an evaluator (the numpy meaning of primitives, for what can be computed now).
Bodies of control flow are programs too: `everywhere` applies a pass to them first.
"""

from __future__ import annotations

from weft.passes.arithmetic import simplify_arithmetic
from weft.passes.captures import embed_bytes, embed_constants
from weft.passes.dedupe import merge_duplicates
from weft.passes.drop import drop_unused
from weft.passes.flattened import restore_rows
from weft.passes.fold import fold_constants
from weft.passes.gather import gather_host_steps
from weft.passes.hoist import hoist_products
from weft.passes.nothing import settle_nothing
from weft.passes.quantized import multiply_bytes
from weft.passes.quotients import multiply_by_reciprocals
from weft.passes.renumber import number_values
from weft.passes.requantize import join_scales
from weft.passes.rewrite import Pass
from weft.passes.scales import fold_scales
from weft.passes.shuffles import move_shuffles
from weft.passes.siblings import join_siblings
from weft.passes.simplify import simplify_movement
from weft.passes.tables import look_up_bytes
from weft.passes.windows import narrow_windows

PIPELINE: tuple[Pass, ...] = (
    settle_nothing,
    embed_bytes,
    multiply_bytes,
    fold_constants,
    narrow_windows,
    embed_constants,
    hoist_products,
    simplify_arithmetic,
    simplify_movement,
    drop_unused,
    restore_rows,
    join_siblings,
    simplify_movement,
    merge_duplicates,
    look_up_bytes,
    join_scales,
    multiply_by_reciprocals,
    fold_scales,
    move_shuffles,
    drop_unused,
    gather_host_steps,
    number_values,
)

__all__ = ["PIPELINE", "Pass"]
