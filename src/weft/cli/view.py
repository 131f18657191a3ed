"""`weft view`: a model as one HTML page, opened in a browser where there is one."""

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
    ("look at a model", "weft view model.onnx"),
    ("with the time that each node takes", "weft view model.onnx --measure"),
    ("with a profile that was made elsewhere", "weft view model.onnx --profile profile.json -o page.html"),
)
REMOTE = ("SSH_CONNECTION", "SSH_TTY", "CI")  # variables of sessions in which nobody sees a browser
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "view",
        help="a page that shows a model: graph, kernels, weights, times",
        description="Write one HTML page that shows a model, and open it in a browser. Nodes are folded by scope and "
        "coloured by the kernel that does them; the page searches, and tells shapes, attributes, and what weights are "
        "like. A model that cannot be compiled is shown with the reason. The page needs nothing but a browser.",
    )
    options.add_model(parser)
    options.add_output(parser, "write the page there; - prints it (default: MODEL's name with .html, here)")
    parser.add_argument("--no-open", dest="open", action="store_false", help="write the page and open nothing")
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument(
        "--profile", type=Path, metavar="FILE", help="show what weft profile MODEL -o FILE has measured of the nodes"
    )
    measured.add_argument("--measure", action="store_true", help="run the model on made-up data, and show its times")
    options.add_loading(
        parser,
        "what kernels are shown for",
        without=("strict", "threads", "memory_limit", "prefer", "cache", "trusted"),
    )
    options.add_sizes(parser, "that sizes and costs are told for")
    options.add_json(parser, "print what the page would show as JSON, and write no page")


def run(args: argparse.Namespace) -> int:
    from weft.report.view import data_page, page_path, view_data

    began = time.perf_counter()
    loading = options.load_arguments(args)
    place = page_path(args.model, args.output)
    data = view_data(
        args.model,
        profile=args.profile,
        measure=args.measure,
        device=None if loading["device"] == options.AUTO else loading["device"],
        precision=loading["precision"],
        sizes=sizes_of_file(args),
    )
    if args.json:
        output.print_json(data)
        return 0
    text = data_page(data)
    write_text(place, text)
    if place == STDOUT:
        return 0
    seconds = time.perf_counter() - began
    opened = args.open and has_browser() and _shown(place)
    what = f"{escape_unprintable(str(place))}: {format_bytes(len(text))}, made in {seconds:.1f} s"
    output.console().print(f"{what}{'; it opens in a browser' if opened else '; open it in a browser'}", soft_wrap=True)
    return 0


def has_browser() -> bool:
    """Whether whoever started the command would see a browser: not in a pipe, over ssh, or without a screen."""
    if not sys.stdout.isatty() or any(os.environ.get(name) for name in REMOTE):
        return False
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in DISPLAYS)


def _shown(place: Path) -> bool:
    import webbrowser

    return webbrowser.open(place.resolve().as_uri())
