"""`weft export`: write a model as a C library for programs without Python."""

from __future__ import annotations

import argparse
from typing import Any

from rich.text import Text

from weft.backends.cpu.targets import TARGETS
from weft.backends.device import NATIVE
from weft.cli import options, output
from weft.cli.output import format_bytes
from weft.cli.sizes import sizes_of_file

EXAMPLES = (
    ("a header, an object file, weights and an example", "weft export model.onnx -o library"),
    ("with the weights in the object file", "weft export model.onnx -o library --embed"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "export",
        help="write a model as a C library: header, object file, weights",
        description="Write a model as a C library: a header that documents it, an object file with one function to run "
        "it, the weights, and an example. The code needs no Python and no weft. Sizes of inputs stay dynamic unless "
        "--shape fixes them.",
    )
    options.add_model(parser)
    options.add_output(parser, "the folder for the files", "--c", metavar="DIR", required=True)
    parser.add_argument("--name", metavar="NAME", help="name of functions and files (default: the model's name)")
    parser.add_argument("--target", default=NATIVE, metavar="T", help=f"processor to compile for: {', '.join(TARGETS)}")
    options.add_sizes(parser, "to fix in the library")
    options.add_loading(parser, without=tuple(set(options.LOADING) - {"precision"}))
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="value to compute; may be repeated (default: the outputs of the model)",
    )
    parser.add_argument("--embed", action="store_true", help="put the weights into the object file")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from weft.export.export import export_c

    library = export_c(
        args.model,
        args.output,
        name=args.name,
        target=args.target,
        precision=args.precision,
        sizes=sizes_of_file(args),
        outputs=args.only,
        embed=args.embed,
    )
    files = [
        path
        for path in (library.header, library.object, library.library, library.weights, library.example)
        if path is not None
    ]
    if args.json:
        output.print_json(
            {
                "name": library.interface.name,
                "files": [str(path) for path in files],
                "sizes": {size.symbol.name: size.member for size in library.interface.sizes},
                "inputs": {port.member: port.label for port in library.interface.inputs},
                "deciding": {port.member: port.label for port in library.interface.size_inputs},
                "outputs": {port.member: port.label for port in library.interface.outputs},
            }
        )
        return 0
    console = output.console()
    rows = [(output.escape_unprintable(str(path)), format_bytes(path.stat().st_size)) for path in files]
    console.print(output.table(f"{library.interface.name}, a C library", ("file", "size"), rows, ("size",)))
    build = f"cc -O2 {library.example} {library.object} -lm -o {library.interface.name}_example"
    console.print("\nBuild the example with:")
    console.print(Text(output.escape_unprintable(build), "dim"), soft_wrap=True)
    return 0
