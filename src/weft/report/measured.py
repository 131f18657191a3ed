"""The measurements of a profile that belong to nodes, from a `Profile` or its JSON file."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.records import dataclass
from weft.report.fusion import ON_HOST
from weft.runtime.profile import Profile

HINT = "make one with: weft profile MODEL -o profile.json"


@dataclass(frozen=True, slots=True)
class MeasuredWork:
    """What one work took in a run; `arena` are the bytes of its results in the arena."""

    name: str
    nodes: tuple[str, ...]
    device: str
    launches: int
    seconds: float
    share: float
    flops: float
    bytes: float
    roofline: float | None
    bound: str
    arena: int


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    device: str
    threads: int
    seconds: float
    runs: int
    arena_bytes: int
    works: tuple[MeasuredWork, ...]


def read_measurements(profile: Profile | MeasuredRun | str | PathLike[str]) -> MeasuredRun:
    """Return the measurements of a profile, or of its JSON file."""
    match profile:
        case MeasuredRun():
            return profile
        case Profile():
            from weft.report.profile_files import profile_data

            return _parse_run(profile_data(profile))
        case str() | PathLike():
            return _read_file(Path(profile))
    problem = f"profile must be a result of model.profile() or its JSON file, not a {type(profile).__name__}"
    raise InputError(problem, hint=HINT)


def _read_file(path: Path) -> MeasuredRun:
    try:
        return _parse_run(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"the profile {path} cannot be read: {error.strerror}", hint=HINT) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is not a profile that weft saved as JSON", hint=HINT) from error


def _parse_run(data: Any) -> MeasuredRun:
    arena: dict[tuple[str, ...], int] = {}
    for tensor in data["tensors"]:
        nodes = _parse_names(tensor["nodes"])
        arena[nodes] = arena.get(nodes, 0) + int(tensor["size"])
    device = str(data["device"])
    return MeasuredRun(
        device=device,
        threads=int(data["threads"]),
        seconds=float(data["seconds"]),
        runs=len(data["runs"]),
        arena_bytes=int(data["arena_bytes"]),
        works=tuple(_parse_work(kernel, device, arena) for kernel in data["kernels"]),
    )


def _parse_work(kernel: Any, device: str, arena: dict[tuple[str, ...], int]) -> MeasuredWork:
    nodes = _parse_names(kernel["nodes"])
    bound = str(kernel["bound"])
    roofline = kernel["roofline"]
    return MeasuredWork(
        name=str(kernel["name"]),
        nodes=nodes,
        device=ON_HOST if bound == ON_HOST else device,
        launches=int(kernel["launches"]),
        seconds=float(kernel["seconds"]),
        share=float(kernel["share"]),
        flops=float(kernel["flops"]),
        bytes=float(kernel["bytes"]),
        roofline=None if roofline is None else float(roofline),
        bound=bound,
        arena=arena.pop(nodes, 0),
    )


def _parse_names(nodes: Any) -> tuple[str, ...]:
    if not isinstance(nodes, (list, tuple)):
        raise TypeError("nodes must be a list of names")
    return tuple(map(str, nodes))
