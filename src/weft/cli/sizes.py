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

MOST_DIGITS = 18  # of a size
HINT = "for instance --shape batch=4, or --shape x=1,3,224,224 for a whole input"

Sizes = dict[str, int]
Wanted = Union[int, tuple[int, ...]]


def sizes_for(args: Namespace, specs: Sequence[TensorSpec]) -> Sizes:
    """The sizes that were asked for, by the names of dims; InputError where the inputs have no such dim."""
    return _resolved(_parsed(args.shape), args.batch, specs)


def sizes_of_file(args: Namespace) -> Sizes:
    """The same for `args.model`, which is read only where that is needed; names of dims are not checked."""
    asked = _parsed(args.shape)
    plain = {name: size for name, size in asked.items() if isinstance(size, int)}
    if args.batch is None and len(plain) == len(asked):
        return plain
    declared, _ = declared_signature(args.model)
    return _resolved(asked, args.batch, [*declared.inputs, *declared.defaults])


def declared_signature(model: str | Path) -> tuple[Signature, OnnxModel]:
    """What a file says that it takes and gives, without tracing it, and what else it says."""
    from weft.loading import open_pipeline
    from weft.opset.lower import build_untraced_program
    from weft.runtime.options import LoadOptions

    source = open_pipeline(model, LoadOptions(device="reference")).read()
    return signature(source.graph, build_untraced_program(source.graph), source.about), source


def check_sizes(specs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> None:
    """Every name in `sizes` must be a dynamic dim of some input."""
    for name in sizes:
        if name not in _dims(specs):
            raise InputError(f"--shape {name}: the inputs have no dynamic dim of that name", hint=_known(specs))


def _parsed(texts: Sequence[str]) -> dict[str, Wanted]:
    found: dict[str, Wanted] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        parts = re.split(r"\s*[,x×]\s*", value.strip().removeprefix("[").removesuffix("]"))
        if not name or not all(part.isdecimal() and len(part) <= MOST_DIGITS for part in parts):
            raise InputError(f"--shape {text}: not of the form name=size", hint=HINT)
        numbers = tuple(int(part) for part in parts)
        found[name] = numbers[0] if len(parts) == 1 and not value.strip().startswith("[") else numbers
    return found


def _resolved(asked: Mapping[str, Wanted], batch: int | None, specs: Sequence[TensorSpec]) -> Sizes:
    sizes: Sizes = {}
    by_name = {spec.name: spec for spec in specs}
    for name, wanted in asked.items():
        if isinstance(wanted, int) and name in _dims(specs):
            _put(sizes, name, wanted, f"--shape {name}")
            continue
        if name not in by_name:
            hint = _known(specs) if isinstance(wanted, int) else f"the inputs are {', '.join(by_name)}"
            what = "no dynamic dim" if isinstance(wanted, int) else "none"
            raise InputError(f"--shape {name}: the inputs have {what} of that name", hint=hint)
        _put_shape(sizes, by_name[name], (wanted,) if isinstance(wanted, int) else wanted)
    if batch is not None:
        firsts = {spec.shape[0] for spec in specs if spec.shape}
        for dim in firsts:
            if isinstance(dim, str):
                _put(sizes, dim, batch, "--batch")
        if not any(isinstance(dim, str) for dim in firsts) and firsts != {batch}:
            fixed = ", ".join(str(dim) for dim in sorted(firsts, key=str)) or "not there"
            raise InputError(f"--batch {batch}: the first dim of the inputs is {fixed} in the file, and cannot change")
    return sizes


def _put(sizes: Sizes, dim: str, size: int, origin: str) -> None:
    if sizes.setdefault(dim, size) != size:
        raise InputError(f"{origin}: {dim} would be {size}, but another option says {sizes[dim]}")


def _put_shape(sizes: Sizes, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    declared = spec.shape
    said = ", ".join(map(str, shape))
    if declared is None:
        raise InputError(f"--shape {spec.name}: the file does not say how many dims this input has")
    if len(declared) != len(shape) or any(a != b for a, b in zip(declared, shape) if isinstance(a, int)):
        hint = "numbers in it are fixed; names can have any size"
        known = ", ".join(map(str, declared))
        raise InputError(f"--shape {spec.name}: ({said}) does not fit its shape, ({known})", hint=hint)
    for dim, size in zip(declared, shape):
        if isinstance(dim, str):
            _put(sizes, dim, size, f"--shape {spec.name}")


def _dims(specs: Sequence[TensorSpec]) -> list[str]:
    return sorted({dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)})


def _known(specs: Sequence[TensorSpec]) -> str:
    known = _dims(specs)
    return f"the dynamic dims are {', '.join(known)}" if known else "all dims of this model are fixed"
