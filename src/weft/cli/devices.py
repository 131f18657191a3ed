"""`weft devices`: what models can run on here, and why not on the rest."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from rich.text import Text

import weft
from weft import Device
from weft.cli import output
from weft.cli.output import format_bytes


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("devices", help="the devices weft can use here, and why not the others")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    devices = weft.devices()
    if args.json:
        output.print_json([asdict(device) for device in devices])
        return 0

    rows = [
        (
            Text(device.name, "bold" if device.available else "dim"),
            Text("yes", "green") if device.available else Text("no", "yellow"),
            Text("\n".join([device.description, *_details(device)])),
        )
        for device in devices
    ]
    output.console().print(output.table("", ("device", "here", "what, or why not"), rows))
    return 0


def _details(device: Device) -> list[str]:
    """What a GPU tells of itself."""
    if not device.kind:
        return []
    limits = device.limits
    told = [f"{device.kind}, driver {device.driver}"]
    if {"max_buffer_bytes", "max_binding_bytes", "shared_bytes"} <= set(limits):
        sizes = ("max_buffer_bytes", "max_binding_bytes", "shared_bytes")
        buffer, bound, shared = (format_bytes(limits[name]) for name in sizes)
        told += [
            f"buffers of {buffer}, {bound} bound at once, {limits['max_bindings']} to a kernel",
            f"groups of {limits['max_lanes']} that share {shared}, {limits['max_groups']} along each dimension",
        ]
    else:  # those of a device that has others
        told += [f"{name} {value:,}" for name, value in limits.items()]
    return [*told, ", ".join(device.features)]
