"""Classes of input shapes, each of which one program can serve: some sizes are fixed, all others stay dynamic.

The program for any shapes assumes that no size is 0, that sizes which broadcast together are equal, and that dims of
the same name have the same size. Shapes that break an assumption belong to a class in which the sizes of 0 or 1 are
fixed, or those in the guards that fail, or in which dims of the same name are separate. Classes follow from shapes and
from the guards of the program for any shapes alone, so that a later process finds the program of a class without
tracing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Union

from weft.backends.reference.sizes import GuardError, check_guards
from weft.ir import dims
from weft.ir.program import Guard, Value
from weft.ir.specs import TensorSpec
from weft.ir.types import Shape

Size = Union[int, str, None]  # a fixed size, the name of a dynamic dim, or the declared dim
ShapeClass = Mapping[str, Union[tuple[Size, ...], None]]  # by input; None: an input that is left out
InputShapes = Mapping[str, Sequence[int]]


def list_shape_classes(
    specs: Sequence[TensorSpec], shapes: InputShapes, base: ShapeClass, has_clash: bool, guards: Iterable[Guard]
) -> list[ShapeClass]:
    """List the classes that contain these shapes, the widest first; the last one fixes all sizes.

    `base` has the ranks of inputs that declare none, and the inputs that are left out. `has_clash`: dims of the same
    name have different sizes. `guards` are those of the program for any shapes.
    """
    tensors = [spec for spec in specs if spec.name in shapes and spec.element is not None]
    declared = {spec.name: _dim_names(spec, shapes) for spec in tensors}
    separate = _separate_dims(declared, shapes) if has_clash else {}
    sizes = {dim: size for name, names in declared.items() for dim, size in zip(names, shapes[name])}
    broken = set() if has_clash else _find_broken_dims(guards, sizes)
    failing = set() if has_clash else _find_failing_dims(guards, sizes)

    def fix(is_fixed: Callable[[str, int], bool]) -> ShapeClass:
        fixed: dict[str, tuple[Size, ...] | None] = dict(base)
        for name, names in declared.items():
            form = tuple(
                None if not dim else size if is_fixed(dim, size) else separate.get((name, axis))
                for axis, (dim, size) in enumerate(zip(names, shapes[name]))
            )
            if any(size is not None for size in form):
                fixed[name] = form
        return fixed

    classes = [
        fix(lambda _, size: size == 0),
        fix(lambda dim, size: size == 0 or dim in broken),
        fix(lambda _, size: size <= 1),
        fix(lambda dim, size: size == 0 or dim in failing),
        {**base, **{name: tuple(shape) for name, shape in shapes.items()}},
    ]
    return [form for number, form in enumerate(classes) if form not in classes[:number]]


def _dim_names(spec: TensorSpec, shapes: InputShapes) -> tuple[str, ...]:
    """Return the names of an input's dynamic dims, and "" for fixed ones."""
    if spec.shape is None:
        return tuple(f"{spec.name}.{axis}" for axis in range(len(shapes[spec.name])))
    return tuple(dim if isinstance(dim, str) else "" for dim in spec.shape)


def _separate_dims(declared: Mapping[str, Sequence[str]], shapes: InputShapes) -> dict[tuple[str, int], str]:
    """Return a new name for each dim, by input and axis, whose name stands for different sizes."""
    sizes: dict[str, set[int]] = {}
    for name, names in declared.items():
        for dim, size in zip(names, shapes[name]):
            sizes.setdefault(dim, set()).add(size)
    separate: dict[tuple[str, int], str] = {}
    for name, names in declared.items():
        for axis, dim in enumerate(names):
            if dim and len(sizes[dim]) > 1:
                new_name = f"{name}.{axis}"
                while new_name in sizes:
                    new_name += "'"
                sizes[new_name] = set()
                separate[name, axis] = new_name
    return separate


def _find_broken_dims(guards: Iterable[Guard], sizes: Mapping[str, int]) -> set[str]:
    """Return the names of the dims of size 1 in guards that do not hold, and of those that other guards relate to them.

    A guard may hold only because both of its dims are 1: if one of them is fixed, the other has to be.
    """
    broken: set[str] = set()
    groups: list[set[str]] = []
    for guard in guards:
        names = dims.symbol_names(guard.left) | dims.symbol_names(guard.right)
        group = {name for name in names if sizes.get(name) == 1}
        if not group:
            continue
        groups.append(group)
        try:
            check_guards((guard,), sizes)
        except (GuardError, ArithmeticError):
            broken |= group
    while related := [group for group in groups if group & broken and not group <= broken]:
        broken = broken.union(*related)
    return broken


def _find_failing_dims(guards: Iterable[Guard], sizes: Mapping[str, int]) -> set[str]:
    """Return the names of the dims in guards that do not hold, such as a height at which a pooled tensor is empty."""
    failing: set[str] = set()
    for guard in guards:
        names = dims.symbol_names(guard.left) | dims.symbol_names(guard.right)
        if names <= sizes.keys():
            try:
                check_guards((guard,), sizes)
            except (GuardError, ArithmeticError):
                failing |= names
    return failing


def bind_input_sizes(inputs: Sequence[Value], shapes: InputShapes) -> dict[str, int]:
    """Return the sizes of a program's dynamic dims for these shapes of inputs."""
    sizes: dict[str, int] = {}
    for value in inputs:
        declared: Shape = value.type.shape or ()
        for dim, size in zip(declared, shapes.get(value.name, ())):
            symbol = dims.as_symbol(dim)
            if symbol is not None:
                sizes.setdefault(symbol.name, size)
    return sizes


def can_serve(inputs: Sequence[Value], guards: Sequence[Guard], shapes: InputShapes) -> bool:
    """Whether a program takes these shapes, as far as that is known before a run."""
    for value in inputs:
        for dim, size in zip(value.type.shape or (), shapes.get(value.name, ())):
            symbol = dims.as_symbol(dim)
            if symbol is not None and symbol.low is not None and size < symbol.low:
                return False
    try:
        check_guards(guards, bind_input_sizes(inputs, shapes))
    except (GuardError, ArithmeticError):
        return False
    return True
