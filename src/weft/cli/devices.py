"""`weft devices`: what models can run on here, and why not on the rest."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("devices", help="the devices weft can use here, and why not the others")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    import weft
    from weft.cli import output

    devices = weft.devices()
    if args.json:
        output.print_json(
            [
                {"name": device.name, "available": device.available, "description": device.description}
                for device in devices
            ]
        )
        return 0
    from rich.text import Text

    rows = [
        (
            Text(device.name, "bold" if device.available else "dim"),
            Text("yes", "green") if device.available else Text("no", "yellow"),
            device.description,
        )
        for device in devices
    ]
    output.console().print(output.table("", ("device", "here", "what, or why not"), rows))
    return 0
