"""What was measured of a model, as far as it belongs to nodes: from a profile, or from the JSON of one."""

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
    """The work of some nodes in one run, and the bytes of the arena that its results take."""

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


def measured_run(profile: Profile | MeasuredRun | str | PathLike[str]) -> MeasuredRun:
    """What a profile tells, or a file of one."""
    match profile:
        case MeasuredRun():
            return profile
        case Profile():
            from weft.report.profile_files import profile_data

            return _run(profile_data(profile))
        case str() | PathLike():
            return read_run(Path(profile))
    problem = f"a profile is what model.profile() gives or a file of one, not a {type(profile).__name__}"
    raise InputError(problem, hint=HINT)


def read_run(path: Path) -> MeasuredRun:
    """A profile that was saved as JSON."""
    try:
        return _run(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"the profile {path} cannot be read: {error.strerror}", hint=HINT) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is no profile that weft has written as JSON", hint=HINT) from error


def _run(data: Any) -> MeasuredRun:
    arena: dict[tuple[str, ...], int] = {}
    for tensor in data["tensors"]:
        nodes = _names(tensor["nodes"])
        arena[nodes] = arena.get(nodes, 0) + int(tensor["size"])
    device = str(data["device"])
    return MeasuredRun(
        device=device,
        threads=int(data["threads"]),
        seconds=float(data["seconds"]),
        runs=len(data["runs"]),
        arena_bytes=int(data["arena_bytes"]),
        works=tuple(_work(kernel, device, arena) for kernel in data["kernels"]),
    )


def _work(kernel: Any, device: str, arena: dict[tuple[str, ...], int]) -> MeasuredWork:
    nodes = _names(kernel["nodes"])
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


def _names(nodes: Any) -> tuple[str, ...]:
    if not isinstance(nodes, (list, tuple)):
        raise TypeError("names of nodes")
    return tuple(map(str, nodes))
