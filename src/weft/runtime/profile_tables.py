"""A profile as text: the run and its slowest kernels."""

from __future__ import annotations

from collections.abc import Iterator

from weft.quantities import ELLIPSIS, format_bytes, format_count, format_plural, format_seconds, join_few, shorten
from weft.runtime.profile import KernelProfile, Profile
from weft.tables import Table

SHOWN_KERNELS = 15
COLUMNS = ("kernel", "time", "share", "of roofline", "bound by", "nodes")


def profile_tables(profile: Profile) -> Iterator[Table]:
    """Make a table of the run, then one of its kernels, slowest first."""
    peak = profile.peak_memory
    yield Table(
        [
            ("model", f"{profile.file} on {profile.device}"),
            ("a run", f"{format_seconds(profile.seconds)}, the median of {format_plural(len(profile.runs), 'run')}"),
            ("arithmetic", format_count(profile.flops, "FLOP")),
            (
                "threads",
                f"{profile.threads}, busy {join_few((f'{fraction:.0%}' for fraction in profile.occupancy), 8)}",
            ),
            (
                "arena",
                format_bytes(profile.arena_bytes) + ("" if peak is None else f", {format_bytes(peak.bytes)} live"),
            ),
        ]
    )
    others = profile.kernels[SHOWN_KERNELS:]
    left_out = sum(kernel.share for kernel in others)
    yield Table(
        [_row(kernel, profile) for kernel in profile.kernels[:SHOWN_KERNELS]],
        COLUMNS,
        right=COLUMNS[1:4],
        note=f"{ELLIPSIS} and {format_plural(len(others), 'more kernel')}, {left_out:.1%} of the time"
        if others
        else "",
    )


def _row(kernel: KernelProfile, profile: Profile) -> tuple[str, ...]:
    ops = [profile.ops.get(node, "") for node in kernel.nodes]
    nodes = [node if op.lower() in node.lower() else f"{op} {node}" for node, op in zip(kernel.nodes, ops)]
    return (
        kernel.name if kernel.launches == 1 else f"{kernel.name} × {kernel.launches}",
        format_seconds(kernel.seconds),
        f"{kernel.share:.1%}",
        "" if kernel.roofline is None else f"{kernel.roofline:.0%}",
        kernel.bound,
        join_few((shorten(node, 48) for node in nodes), 2),
    )
