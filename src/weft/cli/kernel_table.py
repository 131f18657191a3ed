"""Print the kernels of a profile as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from weft.cli import output
from weft.cost.roofline import TilePeak
from weft.report.nodes import label_nodes
from weft.runtime.profile import KernelProfile, Profile

SHOWN_NODES = 3
SHORT_DIGEST = 8
COLUMNS = ("kernel", "nodes", "time", "share", "FLOP/s", "B/s", "of roofline", "bound by")
NOTHING = "–"


def print_kernels(profile: Profile, ops: Mapping[str, str], most: int, console: Console) -> None:
    """Print the slowest `most` kernels, the total of the others, and the roofline."""
    shown, others = profile.kernels[:most], profile.kernels[most:]
    names = shorten_names([kernel.name for kernel in profile.kernels], console)
    rows = [_row(kernel, names[kernel.name], ops) for kernel in shown]
    if others:
        seconds, share = sum(kernel.seconds for kernel in others), sum(kernel.share for kernel in others)
        rows.append((f"{len(others)} more", "", output.format_seconds(seconds), f"{share:.1%}", "", "", "", ""))
    console.print(
        output.table(output.escape_unprintable(profile.file), COLUMNS, rows, COLUMNS[2:7], ("kernel",), "nodes")
    )
    console.print()
    machine = profile.machine
    arithmetic = [output.format_count(machine.flops, "FLOP/s")]
    if isinstance(machine, TilePeak):
        arithmetic += [f"{output.format_count(rate, 'FLOP/s')} of {kind}" for kind, rate in machine.products.items()]
    roof = f"{', '.join(arithmetic)} and {output.format_count(machine.bandwidth, 'B/s')}"
    threads = "1 thread" if profile.threads == 1 else f"{profile.threads} threads"
    console.print(
        Text(
            f"median of {len(profile.runs)} runs: {output.format_seconds(profile.seconds)}, "
            f"{output.format_count(profile.flops, 'FLOP')}; roofline of {roof}, measured on {threads}",
            "dim",
        )
    )


def list_nodes(nodes: Iterable[str], ops: Mapping[str, str]) -> str:
    """List the first nodes of a kernel, and the number of others."""
    names = label_nodes([name for joined in nodes for name in joined.split(" + ")], ops)
    more = f", and {len(names) - SHOWN_NODES} more" if len(names) > SHOWN_NODES else ""
    return ", ".join(names[:SHOWN_NODES]) + more


def shorten_names(names: Sequence[str], console: Console) -> dict[str, str]:
    """Shorten the digests in kernel names as long as they stay distinct; `-k` accepts any part of a name.

    In a pipe, names are not shortened.
    """
    if console.width >= output.NO_LIMIT:
        return {name: name for name in names}
    for length in range(SHORT_DIGEST, 64):
        shortened = {name: _shorten_name(name, length) for name in names}
        if len(set(shortened.values())) == len(shortened):
            return shortened
    return {name: name for name in names}


def _shorten_name(name: str, length: int) -> str:
    head, mark, digest = name.rpartition("_")
    return f"{head}_{digest[:length]}" if mark else name


def _row(kernel: KernelProfile, name: str, ops: Mapping[str, str]) -> tuple[object, ...]:
    return (
        name if kernel.launches == 1 else f"{name} × {kernel.launches}",
        list_nodes(kernel.nodes, ops),
        output.format_seconds(kernel.seconds),
        f"{kernel.share:.1%}",
        output.format_count(kernel.flops_per_second) if kernel.flops else NOTHING,
        output.format_count(kernel.bytes_per_second) if kernel.bytes else NOTHING,
        NOTHING if kernel.roofline is None else f"{kernel.roofline:.0%}",
        f"{kernel.bound}, {kernel.tiles}" if kernel.tiles and kernel.bound == "arithmetic" else kernel.bound,
    )
