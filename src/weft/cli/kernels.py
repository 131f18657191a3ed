"""`weft kernels`: list the kernels of a model, or show the code of some."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from weft.backends.device import Listing
from weft.cli import options, output
from weft.cli.kernel_table import list_nodes, shorten_names
from weft.cli.sizes import sizes_of_file
from weft.errors import InputError
from weft.ir.work import KernelCounts
from weft.loading import open_pipeline
from weft.report.kernel_list import ModelKernel, list_kernels
from weft.report.nodes import label_nodes, ops_by_node
from weft.runtime.options import LoadOptions

NOTHING = "–"
COLUMNS = ("kernel", "template", "nodes", "launches", "FLOPs", "bytes")
EXAMPLES = (
    ("the kernels of a model on the best device", "weft kernels model.onnx"),
    ("the code of all products, for a GPU", "weft kernels model.onnx -k contract --device webgpu:0"),
    ("FLOPs and memory traffic of a batch of 8", "weft kernels model.onnx --shape batch=8"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "kernels",
        help="list the kernels of a model: nodes, template, cost, code",
        description="List the kernels of a model: the nodes that each computes, its template, and lower bounds of its "
        "FLOPs and memory traffic. -k also shows why the template was chosen, the kernel's IR and the code "
        "for the device.",
    )
    options.add_model(parser)
    parser.add_argument(
        "-k",
        dest="names",
        action="append",
        default=[],
        metavar="NAME",
        help="show kernels with this text in their name",
    )
    options.add_loading(parser, "device to compile for", without=("strict", "memory_limit", "cache"))
    options.add_sizes(parser, "for the costs")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    sizes = sizes_of_file(args)
    pipeline = open_pipeline(args.model, LoadOptions(**options.load_arguments(args), cache=False))
    kernels = list_kernels(pipeline, sizes)
    matches = [kernel for kernel in kernels if any(name in kernel.name for name in args.names)]
    if args.names and not matches:
        raise InputError(f"no kernel has {' or '.join(args.names)} in its name", hint="leave out -k to list all")
    if args.json:
        output.print_json([_record(kernel, with_code=bool(args.names)) for kernel in matches or kernels])
        return 0
    ops = ops_by_node(pipeline.read().graph)
    console = output.console()
    if args.names:
        for kernel in matches:
            _print_kernel(kernel, ops, console)
        return 0
    names = shorten_names([kernel.name for kernel in kernels], console)
    rows = [_row(kernel, names[kernel.name], ops) for kernel in kernels]
    console.print(output.table(args.model, COLUMNS, rows, COLUMNS[3:], ("kernel",), "nodes"))
    costs = output.format_sizes(kernels.sizes, [name for name in kernels.sizes if name not in sizes])
    counts = KernelCounts(len(kernels), sum(kernel.launches for kernel in kernels))
    console.print(Text(f"\n{counts} on {kernels.device}{f'; FLOPs and bytes for {costs}' if costs else ''}", "dim"))
    console.print(Text("weft kernels MODEL -k NAME shows one", "dim"))
    return 0


def _row(kernel: ModelKernel, name: str, ops: dict[str, str]) -> tuple[object, ...]:
    return (
        Text(name, "bold"),
        Text(kernel.template, "cyan"),
        list_nodes(kernel.nodes, ops),
        kernel.launches,
        NOTHING if kernel.flops is None else output.format_count(kernel.flops),
        NOTHING if kernel.bytes is None else output.format_bytes(kernel.bytes),
    )


def _print_kernel(kernel: ModelKernel, ops: dict[str, str], console: Console) -> None:
    console.print(Text(kernel.name, "bold"))
    flops = NOTHING if kernel.flops is None else output.format_count(kernel.flops)
    traffic = NOTHING if kernel.bytes is None else output.format_bytes(kernel.bytes)
    console.print(
        output.facts(
            [
                ("template", f"{kernel.template}: {kernel.reason}" if kernel.reason else kernel.template),
                ("nodes", ", ".join(label_nodes(kernel.nodes, ops))),
                ("cost", f"{kernel.launches} launches, at least {flops} FLOPs and {traffic} in total"),
            ]
        )
    )
    for listing in (Listing("kernel", "python", ".txt", kernel.ir), *kernel.listings()):
        console.print(Text(f"\n{listing.title}", "bold"))
        if console.is_terminal:
            code = Syntax(listing.text.rstrip(), listing.lexer, theme="ansi_dark", background_color="default")
            console.print(code, soft_wrap=True)
        else:
            print(listing.text.rstrip())
    console.print()


def _record(kernel: ModelKernel, *, with_code: bool) -> dict[str, Any]:
    record = {
        "name": kernel.name,
        "template": kernel.template,
        "reason": kernel.reason,
        "nodes": kernel.nodes,
        "launches": kernel.launches,
        "flops": kernel.flops,
        "bytes": kernel.bytes,
        "lanes": kernel.lanes,
    }
    return {**record, "ir": kernel.ir, "code": kernel.code} if with_code else record
