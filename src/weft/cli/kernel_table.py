"""A profile's kernels as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from weft.cli import output
from weft.cost.roofline import TilePeak
from weft.report.nodes import labelled
from weft.runtime.profile import KernelProfile, Profile

SHOWN_NODES = 3
COLUMNS = ("kernel", "nodes", "time", "share", "FLOP/s", "B/s", "of roofline", "bound by")
NOTHING = "–"


def print_kernels(profile: Profile, ops: Mapping[str, str], most: int, console: Console) -> None:
    """The slowest `most` kernels, then what the others take together, and what the roofline is."""
    shown, others = profile.kernels[:most], profile.kernels[most:]
    rows = [_row(kernel, ops) for kernel in shown]
    if others:
        seconds, share = sum(kernel.seconds for kernel in others), sum(kernel.share for kernel in others)
        rows.append((f"{len(others)} more", "", output.format_seconds(seconds), f"{share:.1%}", "", "", "", ""))
    console.print(output.table(output.printable(profile.file), COLUMNS, rows, right=COLUMNS[2:7]))
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


def _row(kernel: KernelProfile, ops: Mapping[str, str]) -> tuple[object, ...]:
    nodes = labelled(kernel.nodes, ops)
    text = ", ".join(nodes[:SHOWN_NODES])
    if len(nodes) > SHOWN_NODES:
        text = f"{text}, and {len(nodes) - SHOWN_NODES} more"
    return (
        kernel.name if kernel.launches == 1 else f"{kernel.name} × {kernel.launches}",
        text,
        output.format_seconds(kernel.seconds),
        f"{kernel.share:.1%}",
        output.format_count(kernel.flops_per_second) if kernel.flops else NOTHING,
        output.format_count(kernel.bytes_per_second) if kernel.bytes else NOTHING,
        NOTHING if kernel.roofline is None else f"{kernel.roofline:.0%}",
        f"{kernel.bound}, {kernel.tiles}" if kernel.tiles and kernel.bound == "arithmetic" else kernel.bound,
    )
