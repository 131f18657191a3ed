"""Operands that are made into the numbers of tiles before a product, where that pays: by a kernel, into memory."""

from __future__ import annotations

from dataclasses import replace

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.target import ThreadTarget
from weft.kernels.lower.tensors import RESULT, Reference, Work, Workspace
from weft.kernels.threads.number_parts import forming_launch
from weft.kernels.threads.product import Product, merged
from weft.kernels.threads.product_operands import run_direction
from weft.kernels.threads.tensor_tiles import CHUNK, Multiplying

_LARGE = 1 << 17  # elements from which on it pays
_OFTEN = 256  # places across of the other operand, with which each element is taken up several times


def formed_operands(
    product: Product,
    how: Multiplying,
    operands: tuple[Reference, Reference],
    sizes: tuple[Dim, Dim],
    active: Dim,
    target: ThreadTarget,
    work: Work,
) -> tuple[Product, Reference, Reference, Work]:
    """The product and the work with those operands formed for which it pays, where `active` is 1."""
    found = list(operands)
    extents = product.extents()
    for side, (element, size) in enumerate(zip((how.left, how.right), sizes)):
        dtype = product.right if side else product.left
        across, others = extents[2 - side], size
        if dtype is element or not _pays(product, side, element.bits, others, across):
            continue
        planes = how.planes
        aligned = dims.ceildiv(size, CHUNK) * CHUNK if planes > 1 else size
        launch = forming_launch(size, element, planes, aligned, target)
        space = Reference("workspace", len(work.workspaces))
        launch = launch.rebound({Reference("operand", 0): found[side], RESULT: space})
        work = replace(
            work,
            launches=(*work.launches, launch if active == 1 else replace(launch, blocks=active * launch.blocks)),
            workspaces=(*work.workspaces, Workspace(element, active * (planes * aligned))),
        )
        found[side] = space
        plane = aligned if planes > 1 else 0
        left_plane, right_plane = product.planes
        if side == 0:
            product = replace(product, left=element, planes=(plane, right_plane))
        else:
            product = replace(product, right=element, planes=(left_plane, plane))
    return product, found[0], found[1], work


def _pays(product: Product, side: int, bits: int, size: Dim, across: Dim) -> bool:
    """Whether elements are many, taken up often, and can be moved into tiles afterwards."""
    if estimate(size) < _LARGE or estimate(across) < _OFTEN:
        return False
    return run_direction(merged(product), side == 0, CHUNK * 8 // bits) is not None
