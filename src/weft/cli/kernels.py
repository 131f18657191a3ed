"""`weft kernels`: the kernels that a model becomes, and the code of those that are asked for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from weft.backends.device import CompilingDriver, Listing
from weft.backends.naming import named
from weft.cli import options, output
from weft.cli.kernel_table import node_list, short_names
from weft.cli.sizes import sizes_of_file
from weft.errors import DeviceError, InputError
from weft.loading import open_pipeline
from weft.plan.usual_sizes import likely_sizes
from weft.quantities import counted
from weft.report.kernels import KernelUse, kernel_uses
from weft.report.nodes import labelled, ops_by_node
from weft.runtime.options import LoadOptions

NOTHING = "–"
COLUMNS = ("kernel", "template", "nodes", "launches", "FLOPs", "bytes")
EXAMPLES = (
    ("what a model becomes on the best device here", "weft kernels model.onnx"),
    ("the code of all products, for a GPU", "weft kernels model.onnx -k contract --device webgpu:0"),
    ("arithmetic and memory traffic for a batch of 8", "weft kernels model.onnx --shape batch=8"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "kernels",
        help="the kernels that a model becomes: nodes, template, cost, code",
        description="List the kernels of a model: the nodes that each came from, the template that built it, its least "
        "arithmetic and memory traffic. With -k: why this template, the kernel's IR and the code of the device.",
    )
    options.add_model(parser)
    parser.add_argument("-k", dest="names", action="append", default=[], metavar="NAME", help="show kernels so named")
    options.add_loading(parser, "what to build for", without=("strict", "memory_limit", "cache"))
    options.add_sizes(parser, "that costs are told for")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    sizes = sizes_of_file(args)
    pipeline = open_pipeline(args.model, LoadOptions(**options.load_arguments(args), cache=False))
    driver = pipeline.driver
    if not isinstance(driver, CompilingDriver):
        raise DeviceError(f"device {driver.name!r} builds no kernels", hint="name one that compiles: see weft devices")
    driver.check_precision(args.precision)
    program = pipeline.program()
    sections = named(pipeline.build(pipeline.fuse(program)))
    given = likely_sizes(program.inputs, program.guards, sizes)
    uses = kernel_uses(sections, given)
    chosen = [use for use in uses if any(name in use.name for name in args.names)]
    if args.names and not chosen:
        raise InputError(f"no kernel with {' or '.join(args.names)} in its name", hint="leave -k out to see all names")
    ops = ops_by_node(pipeline.read().graph)
    if args.json:
        output.print_json([_record(use, driver.listings(use.kernel) if args.names else ()) for use in chosen or uses])
        return 0
    console = output.console()
    if args.names:
        for use in chosen:
            _show(use, ops, driver.listings(use.kernel), console)
        return 0
    names = short_names([use.name for use in uses], console)
    rows = [_row(use, names[use.name], ops) for use in uses]
    console.print(output.table(args.model, COLUMNS, rows, COLUMNS[3:], ("kernel",), "nodes"))
    said = output.format_sizes(given, [name for name in given if name not in sizes])
    count = counted(len(uses), "kernel")
    console.print(Text(f"\n{count} for {driver.name}{f', FLOPs and bytes for {said}' if said else ''}", "dim"))
    console.print(Text("weft kernels MODEL -k NAME shows one", "dim"))
    return 0


def _row(use: KernelUse, name: str, ops: dict[str, str]) -> tuple[object, ...]:
    return (
        Text(name, "bold"),
        Text(use.template, "cyan"),
        node_list(use.nodes, ops),
        use.launches,
        NOTHING if use.flops is None else output.format_count(use.flops),
        NOTHING if use.bytes is None else output.format_bytes(use.bytes),
    )


def _show(use: KernelUse, ops: dict[str, str], listings: Sequence[Listing], console: Console) -> None:
    console.print(Text(use.name, "bold"))
    flops = NOTHING if use.flops is None else output.format_count(use.flops)
    moved = NOTHING if use.bytes is None else output.format_bytes(use.bytes)
    console.print(
        output.facts(
            [
                ("template", f"{use.template}: {use.reason}" if use.reason else use.template),
                ("nodes", ", ".join(labelled(use.nodes, ops))),
                ("cost", f"{use.launches} launches, at least {flops} FLOPs and {moved} in all"),
            ]
        )
    )
    for listing in (Listing("kernel", "python", ".txt", str(use.kernel)), *listings):
        console.print(Text(f"\n{listing.title}", "bold"))
        if console.is_terminal:
            code = Syntax(listing.text.rstrip(), listing.lexer, theme="ansi_dark", background_color="default")
            console.print(code, soft_wrap=True)
        else:
            print(listing.text.rstrip())
    console.print()


def _record(use: KernelUse, listings: Sequence[Listing]) -> dict[str, Any]:
    record = {
        "name": use.name,
        "template": use.template,
        "reason": use.reason,
        "nodes": use.nodes,
        "launches": use.launches,
        "flops": use.flops,
        "bytes": use.bytes,
        "lanes": use.kernel.lanes,
    }
    if not listings:
        return record
    return {**record, "ir": str(use.kernel), "code": {listing.title: listing.text for listing in listings}}
