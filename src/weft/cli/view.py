"""`weft view`: show a model as one HTML page, in a browser if there is one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from weft.cli import options, output
from weft.cli.output_files import STDOUT, write_text
from weft.cli.sizes import sizes_of_file
from weft.quantities import escape_unprintable, format_bytes

EXAMPLES = (
    ("show a model", "weft view model.onnx"),
    ("with the time of each node", "weft view model.onnx --measure"),
    ("with a profile from another machine", "weft view model.onnx --profile profile.json -o page.html"),
)
REMOTE = ("SSH_CONNECTION", "SSH_TTY", "CI")  # sessions without a browser
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "view",
        help="show a model as a page: graph, kernels, weights, times",
        description="Write one HTML page that shows a model, and open it in a browser. Nodes are folded by scope and "
        "coloured by kernel; the page has a search, shapes, attributes and statistics of weights. A model that cannot "
        "be compiled is shown with the reason. The page needs no network.",
    )
    options.add_model(parser)
    options.add_output(
        parser, "the page to write; - is standard output (default: MODEL's name with .html, in this folder)"
    )
    parser.add_argument("--no-open", dest="open", action="store_false", help="do not open a browser")
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument(
        "--profile", type=Path, metavar="FILE", help="show the times of a profile that weft profile MODEL -o FILE wrote"
    )
    measured.add_argument("--measure", action="store_true", help="run the model on random data, and show its times")
    options.add_loading(
        parser,
        "device to show kernels for",
        without=("strict", "threads", "memory_limit", "prefer", "cache", "trusted"),
    )
    options.add_sizes(parser, "for sizes and costs")
    options.add_json(parser, "print the data of the page as JSON, and write no page")


def run(args: argparse.Namespace) -> int:
    from weft.report.view import data_page, page_path, view_data

    start = time.perf_counter()
    load_options = options.load_arguments(args)
    path = page_path(args.model, args.output)
    data = view_data(
        args.model,
        profile=args.profile,
        measure=args.measure,
        device=None if load_options["device"] == options.AUTO else load_options["device"],
        precision=load_options["precision"],
        sizes=sizes_of_file(args),
    )
    if args.json:
        output.print_json(data)
        return 0
    text = data_page(data)
    write_text(path, text)
    if path == STDOUT:
        return 0
    seconds = time.perf_counter() - start
    is_open = args.open and has_browser() and _open_browser(path)
    line = f"{escape_unprintable(str(path))}: {format_bytes(len(text))}, written in {seconds:.1f} s"
    output.console().print(f"{line}; {'opened in a browser' if is_open else 'open it in a browser'}", soft_wrap=True)
    return 0


def has_browser() -> bool:
    """Whether the user would see a browser: not in a pipe, over ssh, or without a display."""
    if not sys.stdout.isatty() or any(os.environ.get(name) for name in REMOTE):
        return False
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in DISPLAYS)


def _open_browser(path: Path) -> bool:
    import webbrowser

    return webbrowser.open(path.resolve().as_uri())
