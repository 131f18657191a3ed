"""`weft compile`: compile a model ahead of time, into a file that loads without a compiler."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import weft
from weft.cli import options, output
from weft.cli.output import format_bytes, format_seconds
from weft.cli.sizes import sizes_of_file
from weft.errors import InputError
from weft.runtime.devices import HOST

SUFFIX = ".weft"
EXAMPLES = (
    ("for this machine, beside the model", "weft compile model.onnx"),
    ("for any processor with AVX2", "weft compile model.onnx --target x86-64-v3 -o model.weft"),
    ("run the compiled file", "weft run model.weft"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compile",
        help="compile a model ahead of time, into a file that loads in milliseconds",
        description="Compile a model and save the programs, with packed weights and machine code, in one file that "
        "`weft.load` and all commands accept like an ONNX file. Loading it needs neither LLVM nor onnx. Other users "
        "have to load it with trusted=True or --trusted (docs/guides/ahead.md).",
    )
    options.add_model(parser)
    options.add_output(parser, f"the file to write (default: MODEL's name with {SUFFIX}, in the same folder)")
    parser.add_argument(
        "--device", action="append", metavar="D", help=f"device to compile for; may be repeated (default {HOST})"
    )
    parser.add_argument(
        "--target",
        action="append",
        metavar="T",
        help="processors: native, x86-64-v2, x86-64-v3, x86-64-v4, aarch64; may be repeated, and loading takes the "
        "best one for the machine (default native)",
    )
    options.add_sizes(parser, "to compile for")
    options.add_loading(parser, without=("device", "strict", "threads", "memory_limit", "prefer", "trusted"))
    parser.add_argument(
        "--no-graph",
        action="store_true",
        help="leave out the model: a smaller file without other shapes, outputs, weights or devices",
    )
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    path = args.output or Path(args.model).with_suffix(SUFFIX)
    if path.exists() and Path(args.model).exists() and path.samefile(args.model):
        raise InputError(f"{path} is the model itself", hint="name another file with -o")
    start = time.perf_counter()
    weft.compile(
        args.model,
        path,
        device=args.device or HOST,
        target=args.target or "native",
        sizes=sizes_of_file(args),
        precision=args.precision,
        cache=args.cache,
        graph=not args.no_graph,
    )
    seconds = time.perf_counter() - start
    record = {**describe_compiled(path), "seconds": seconds}
    if args.json:
        output.print_json(record)
    else:
        _print(record, seconds)
    return 0


def describe_compiled(path: Path) -> dict[str, Any]:
    """Return the contents of a compiled file as plain data."""
    from weft.frontend.source import open_model
    from weft.saved.layout import get_content, read_header
    from weft.saved.signing import is_signed_by_user

    head = read_header(get_content(open_model(path)), str(path))
    manifest = head.manifest
    sizes = [block.size for block in manifest.blocks]
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        "made_from": manifest.file,
        "version": manifest.version,
        "own": is_signed_by_user(head.signed, head.signature),
        "graph_bytes": 0 if head.graph is None else head.graph.size,
        "programs": [
            {
                "device": program.device,
                "target": program.target,
                "precision": program.precision,
                "sizes": dict(program.sizes),
                "needs": dict(program.needs),
                "weight_bytes": sum(sizes[number] for number in program.arrays),
                "code_bytes": sizes[program.program],
            }
            for program in manifest.programs
        ],
    }


def _print(record: dict[str, Any], seconds: float) -> None:
    console = output.console()
    rows = [
        (
            program["device"],
            program["target"],
            program["precision"],
            ", ".join(f"{name}={size}" for name, size in program["sizes"].items()) or "any",
            format_bytes(program["weight_bytes"]),
            format_bytes(program["code_bytes"]),
        )
        for program in record["programs"]
    ]
    columns = ("device", "target", "precision", "sizes", "weights", "program")
    console.print(output.table("", columns, rows, right=("weights", "program")))
    model = f"with the model ({format_bytes(record['graph_bytes'])})" if record["graph_bytes"] else "without the model"
    console.print(f"{record['file']}: {format_bytes(record['bytes'])}, {model}, in {format_seconds(seconds)}")
    if not record["own"]:
        console.print("It is not signed, because no key can be stored: load it with trusted=True.", style="yellow")
