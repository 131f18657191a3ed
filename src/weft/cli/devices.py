"""`weft devices`: what models can run on here, why not on the rest, and what decides among them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from rich.text import Text

import weft
from weft import Device
from weft.cli import output
from weft.cli.output import format_bytes
from weft.runtime.policy import in_force, route


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("devices", help="the devices weft can use here, and why not the others")
    parser.add_argument(
        "--policy", action="store_true", help="only what is in force when no device is named, and who said it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    if args.policy:
        return _print_policy(args.json)
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
    return _print_policy()


def _print_policy(as_json: bool = False) -> int:
    settings = in_force()
    if as_json:
        output.print_json({"policy": [asdict(setting) for setting in settings], "serves": route().devices})
        return 0
    rows = [(setting.name, _shown(setting.value), setting.origin) for setting in settings]
    title = 'what holds for device="auto"'
    output.console().print(output.table(title, ("setting", "value", "said by"), rows))
    output.console().print(f"so models are tried on: {', '.join(route().devices)}", highlight=False)
    return 0


def _shown(value: object) -> str:
    if value is None or value == ():
        return "–"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


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
