"""`weft devices`: available devices, why others are unavailable, and how weft chooses one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from rich.text import Text

import weft
from weft import Device
from weft.cli import options, output
from weft.cli.output import format_bytes
from weft.cost.calibration import Calibration, Transfer, to_record
from weft.errors import WeftError
from weft.ir.dtypes import DType
from weft.runtime.calibrate import measure_calibration
from weft.runtime.policy import DEFAULT, resolve_settings, route
from weft.runtime.progress import stages

PRODUCT_TYPES = (DType.float32, DType.float16, DType.bfloat16, DType.float64, DType.int8)  # of calibrations
EXAMPLES = (
    ("the devices of this machine", "weft devices"),
    ("how weft chooses one", "weft devices --policy"),
    ("measure the devices again", "weft devices --calibrate"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("devices", help="list the devices of this machine, and why others are unavailable")
    parser.add_argument(
        "--policy", action="store_true", help="show only the settings that choose a device, and where they come from"
    )
    parser.add_argument("--calibrate", action="store_true", help="measure the devices again, and show the figures")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.policy:
        return _print_policy(args.json)
    devices = weft.devices()
    if args.calibrate:
        return _calibrate([device.name for device in devices if device.available], args.json)
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
    console = output.console()
    console.print(
        output.table("", ("device", "available", "description, or why not"), rows, whole=("device", "available"))
    )
    console.print()
    if any(setting.origin != DEFAULT for setting in resolve_settings()):  # set by the environment or a program
        return _print_policy()
    console.print(f"models try these devices in order: {', '.join(route().devices)}; see weft devices --policy")
    return 0


def _calibrate(names: Sequence[str], as_json: bool) -> int:
    """Measure devices again, and show the results or the problems."""
    calibrations: dict[str, Calibration] = {}
    problems: dict[str, str] = {}
    with stages("measuring") as progress:
        for name in names:
            try:
                calibrations[name] = measure_calibration(name, None, progress.stage)
            except WeftError as error:
                problems[name] = error.problem
    if as_json:
        records = {name: to_record(calibration) for name, calibration in calibrations.items()}
        output.print_json({"calibrations": records, "not measured": problems})
        return 0
    rows = [
        (label, *(format_figure(calibration) for calibration in calibrations.values()))
        for label, format_figure in _FIGURES.items()
    ]
    console = output.console()
    console.print(output.table("measured figures", ("", *calibrations), rows))
    for name, problem in problems.items():
        console.print(f"{name}: {problem}", highlight=False)
    return 0


def _product_rate(dtype: DType) -> Callable[[Calibration], str]:
    def format_rate(calibration: Calibration) -> str:
        rate = dict(calibration.products).get(dtype)
        return "–" if rate is None else f"{rate / 1e9:,.0f} G/s"

    return format_rate


def _format_transfer(transfer: Transfer) -> str:
    if transfer.bandwidth == inf:
        return "shares the host's memory"
    return f"{transfer.seconds * 1e6:.1f} µs + {transfer.bandwidth / 1e9:.1f} GB/s"


_FIGURES: dict[str, Callable[[Calibration], str]] = {
    "peak float32 arithmetic": lambda calibration: f"{calibration.peak.flops / 1e9:,.0f} GFLOP/s",
    **{f"{dtype} products": _product_rate(dtype) for dtype in PRODUCT_TYPES},
    "memory": lambda calibration: f"{calibration.peak.bandwidth / 1e9:,.1f} GB/s",
    "caches": lambda calibration: (
        f"{calibration.peak.cache_bandwidth / 1e9:,.0f} GB/s" if calibration.peak.cache_bytes else "–"
    ),
    "overhead of a run": lambda calibration: f"{calibration.run_seconds * 1e6:.1f} µs",
    "overhead of a launch": lambda calibration: f"{calibration.launch_seconds * 1e6:.2f} µs",
    "overhead of a launch in a loop": lambda calibration: f"{calibration.iteration_seconds * 1e6:.2f} µs",
    "overhead of a host step": lambda calibration: f"{calibration.host_step_seconds * 1e6:.1f} µs",
    "copy to the device": lambda calibration: _format_transfer(calibration.upload),
    "copy to the host": lambda calibration: _format_transfer(calibration.download),
}


def _print_policy(as_json: bool = False) -> int:
    settings = resolve_settings()
    if as_json:
        output.print_json({"policy": [asdict(setting) for setting in settings], "serves": route().devices})
        return 0
    rows = [(setting.name, _format_setting(setting.value), setting.origin) for setting in settings]
    title = 'settings for device="auto"'
    output.console().print(output.table(title, ("setting", "value", "set by"), rows))
    output.console().print(f"models try these devices in order: {', '.join(route().devices)}", highlight=False)
    return 0


def _format_setting(value: object) -> str:
    if value is None or value == ():
        return "–"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _details(device: Device) -> list[str]:
    """Return the driver and the limits of a GPU."""
    if not device.kind:
        return []
    limits = device.limits
    lines = [f"{device.kind}, driver {device.driver}"]
    if {"max_buffer_bytes", "max_binding_bytes", "shared_bytes"} <= set(limits):
        sizes = ("max_buffer_bytes", "max_binding_bytes", "shared_bytes")
        buffer, bound, shared = (format_bytes(limits[name]) for name in sizes)
        lines += [
            f"buffers of {buffer}, {bound} bound at once, {limits['max_bindings']} per kernel",
            f"groups of {limits['max_lanes']} with {shared} of shared memory, {limits['max_groups']} per dimension",
        ]
    else:
        lines += [f"{name} {value:,}" for name, value in limits.items()]
    return lines
