"""The templates whose kernels suit both families."""

from __future__ import annotations

from weft.ir.groups import StepGroup
from weft.ir.program import Dims, Random
from weft.ir.target import ThreadTarget, VectorTarget
from weft.kernels.build.templates import Request, Template, Templates
from weft.kernels.common.random import random_work
from weft.kernels.common.sizes import sizes_work
from weft.kernels.lower.tensors import Work


def _random(request: Request[StepGroup, VectorTarget | ThreadTarget]) -> Work:
    assert isinstance(request.step.primitive, Random)
    return random_work(request.step.primitive, request.result, request.target)


def _sizes(request: Request[StepGroup, VectorTarget | ThreadTarget]) -> Work:
    assert isinstance(request.step.primitive, Dims)
    return sizes_work(request.step.primitive, request.result, request.target)


TEMPLATES: Templates = {
    Dims: (Template("sizes", "each element is a parameter of the kernel", _sizes),),
    Random: (Template("random", "a lane for each counter", _random),),
}
