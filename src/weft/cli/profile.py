"""`weft profile`: show where time and memory go, as a table, a trace or a page."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import weft
from weft.cli import inputs, options, output
from weft.cli.kernel_table import print_kernels
from weft.cli.output_files import write_text
from weft.report.nodes import ops_by_node
from weft.report.page import profile_page
from weft.report.profile_files import profile_json
from weft.report.trace import trace_json
from weft.runtime.profile import Profile

SHOWN_KERNELS = 25
EXAMPLES = (
    ("the slowest kernels", "weft profile model.onnx"),
    ("a page with timeline and arena", "weft profile model.onnx -o profile.html"),
    ("a trace for Perfetto or Chrome", "weft profile model.onnx -o profile.trace"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "profile",
        help="show where time and memory go: kernels, threads, the arena",
        description="Run a model a few times and show the time of each kernel, its nodes, and how close it is to the "
        "machine's limits. Without data, inputs are random, and dynamic dims get typical sizes.",
    )
    options.add_model(parser)
    inputs.add_inputs(parser)
    options.add_repeat(parser, 10)
    options.add_loading(parser)
    parser.add_argument(
        "--top",
        type=int,
        default=SHOWN_KERNELS,
        metavar="N",
        help=f"number of kernels to list, slowest first (default {SHOWN_KERNELS})",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with timeline, arena map and kernels")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for Perfetto or Chrome's tracing")
    options.add_output(parser, "write the profile: a page (.html), a trace (.trace), or JSON")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    model = weft.load(args.model, **options.load_arguments(args))
    input_set = inputs.inputs_for(args, model, lambda: model.source)
    profile = model.profile(input_set.arrays, repeat=args.repeat)
    ops = ops_by_node(model.source.graph)
    targets = [("page", args.html), ("trace", args.trace)]
    if args.output is not None:
        kind = {".html": "page", ".trace": "trace"}.get(args.output.suffix.lower(), "profile")
        targets.append((kind, args.output))
    files = [
        (
            kind,
            path,
            profile_page(profile, ops)
            if kind == "page"
            else trace_json(profile, ops)
            if kind == "trace"
            else profile_json(profile),
        )
        for kind, path in targets
        if path is not None
    ]
    for _, path, text in files:
        write_text(path, text)
    if args.json:
        print(profile_json(profile))
        return 0
    console = output.console()
    print_kernels(profile, ops, max(args.top, 0), console)
    share = next((share for share in model.report().shares if share.device == profile.device), None)
    _print_summary(profile, "" if share is None else share.summary, input_set.guessed, console)
    for kind, path, _ in files:
        console.print(f"{kind}: {output.escape_unprintable(str(path))}")
    return 0


def _print_summary(profile: Profile, counts: str, guessed: Mapping[str, int], console: Console) -> None:
    facts = [("compiled to", counts)] if counts else []
    facts.append(("threads busy", ", ".join(f"{part:.0%}" for part in profile.occupancy)))
    peak = profile.peak_memory
    if peak is not None:
        kernel = profile.kernels[peak.kernel]
        nodes = f" ({', '.join(kernel.nodes[:2])})" if kernel.nodes else ""
        live = f"{output.format_bytes(peak.bytes)} at most, in {kernel.name}{nodes}"
        facts.append(("live bytes", f"{live}; arena {output.format_bytes(profile.arena_bytes)}"))
    console.print(output.facts(facts))
    if guessed:
        sizes = ", ".join(f"{name} = {size}" for name, size in guessed.items())
        console.print(Text(f"assumed {output.escape_unprintable(sizes)}; set other sizes with --shape", "yellow"))
