"""Sizes of dynamic dims from the command line: `--shape seq=128`, `--shape x=1,3,224,224`, `--batch 8`."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Union

from weft.errors import InputError
from weft.ir.graph import OnnxModel
from weft.ir.specs import Signature, TensorSpec, signature

MAX_DIGITS = 18  # of a size
HINT = "for instance --shape batch=4, or --shape x=1,3,224,224 for a whole input"

Sizes = dict[str, int]
SizeOrShape = Union[int, tuple[int, ...]]


def sizes_for(args: Namespace, specs: Sequence[TensorSpec]) -> Sizes:
    """Return the sizes of `--shape` and `--batch` by dim; raise InputError for dims that the inputs do not have."""
    return _resolve_sizes(_parse_shapes(args.shape), args.batch, specs)


def sizes_of_file(args: Namespace) -> Sizes:
    """Return the sizes of `--shape` and `--batch` for `args.model`, which is read only if needed.

    If it is not read, names of dims are not checked.
    """
    user_shapes = _parse_shapes(args.shape)
    plain = {name: size for name, size in user_shapes.items() if isinstance(size, int)}
    if args.batch is None and len(plain) == len(user_shapes):
        return plain
    declared, _ = declared_signature(args.model)
    return _resolve_sizes(user_shapes, args.batch, [*declared.inputs, *declared.defaults])


def declared_signature(model: str | Path) -> tuple[Signature, OnnxModel]:
    """Return the declared inputs and outputs of a file, without tracing it, and the model."""
    from weft.loading import open_pipeline
    from weft.opset.lower import build_untraced_program
    from weft.runtime.options import LoadOptions

    source = open_pipeline(model, LoadOptions(device="reference")).read()
    return signature(source.graph, build_untraced_program(source.graph), source.about), source


def check_sizes(specs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> None:
    """Raise InputError if a name in `sizes` is not a dynamic dim of an input."""
    for name in sizes:
        if name not in _dynamic_dims(specs):
            raise InputError(f"--shape {name}: the inputs have no dynamic dim of that name", hint=_list_dims(specs))


def _parse_shapes(texts: Sequence[str]) -> dict[str, SizeOrShape]:
    shapes: dict[str, SizeOrShape] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        parts = re.split(r"\s*[,x×]\s*", value.strip().removeprefix("[").removesuffix("]"))
        if not name or not all(part.isdecimal() and len(part) <= MAX_DIGITS for part in parts):
            raise InputError(f"--shape {text}: not of the form name=size", hint=HINT)
        numbers = tuple(int(part) for part in parts)
        shapes[name] = numbers[0] if len(parts) == 1 and not value.strip().startswith("[") else numbers
    return shapes


def _resolve_sizes(user_shapes: Mapping[str, SizeOrShape], batch: int | None, specs: Sequence[TensorSpec]) -> Sizes:
    sizes: Sizes = {}
    by_name = {spec.name: spec for spec in specs}
    for name, shape in user_shapes.items():
        if isinstance(shape, int) and name in _dynamic_dims(specs):
            _set_size(sizes, name, shape, f"--shape {name}")
        elif name in by_name:
            _set_shape(sizes, by_name[name], (shape,) if isinstance(shape, int) else shape)
        elif isinstance(shape, int):
            raise InputError(f"--shape {name}: the inputs have no dynamic dim of that name", hint=_list_dims(specs))
        else:
            hint = f"the inputs are {', '.join(by_name)}"
            raise InputError(f"--shape {name}: the model has no input of that name", hint=hint)
    if batch is not None:
        firsts = {spec.shape[0] for spec in specs if spec.shape}
        for dim in firsts:
            if isinstance(dim, str):
                _set_size(sizes, dim, batch, "--batch")
        if not any(isinstance(dim, str) for dim in firsts) and firsts != {batch}:
            fixed = ", ".join(str(dim) for dim in sorted(firsts, key=str)) or "missing"
            raise InputError(f"--batch {batch}: the first dim of the inputs is {fixed} in the file, and cannot change")
    return sizes


def _set_size(sizes: Sizes, dim: str, size: int, origin: str) -> None:
    if sizes.setdefault(dim, size) != size:
        raise InputError(f"{origin}: {dim} would be {size}, but another option says {sizes[dim]}")


def _set_shape(sizes: Sizes, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    declared = spec.shape
    if declared is None:
        raise InputError(f"--shape {spec.name}: the file does not declare the rank of this input")
    if len(declared) != len(shape) or any(a != b for a, b in zip(declared, shape) if isinstance(a, int)):
        user_text, declared_text = (", ".join(map(str, dims)) for dims in (shape, declared))
        problem = f"--shape {spec.name}: ({user_text}) does not fit its shape, ({declared_text})"
        raise InputError(problem, hint="numbers in it are fixed; names can have any size")
    for dim, size in zip(declared, shape):
        if isinstance(dim, str):
            _set_size(sizes, dim, size, f"--shape {spec.name}")


def _dynamic_dims(specs: Sequence[TensorSpec]) -> list[str]:
    return sorted({dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)})


def _list_dims(specs: Sequence[TensorSpec]) -> str:
    dims = _dynamic_dims(specs)
    return f"the dynamic dims are {', '.join(dims)}" if dims else "all dims of this model are fixed"
