"""`weft devices`: what models can run on here, why not on the rest, and what decides among them."""

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

PRODUCT_TYPES = (DType.float32, DType.float16, DType.bfloat16, DType.float64, DType.int8)  # that are measured
EXAMPLES = (
    ("what models can run on here", "weft devices"),
    ("what decides where they do", "weft devices --policy"),
    ("measure the devices again", "weft devices --calibrate"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("devices", help="the devices weft can use here, and why not the others")
    parser.add_argument(
        "--policy", action="store_true", help="only what is in force when no device is named, and who said it"
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="measure the devices again, and show what decides where models run"
    )
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
    console.print(output.table("", ("device", "here", "what, or why not"), rows, whole=("device", "here")))
    console.print()
    said = [setting for setting in resolve_settings() if setting.origin != DEFAULT]
    if said:  # by the environment, or by a program
        return _print_policy()
    console.print(f"models are tried on: {', '.join(route().devices)}; weft devices --policy says why")
    return 0


def _calibrate(names: Sequence[str], as_json: bool) -> int:
    """Measure devices again, and show what was found, and of the others why not."""
    found: dict[str, Calibration] = {}
    problems: dict[str, str] = {}
    with stages("measuring") as progress:
        for name in names:
            try:
                found[name] = measure_calibration(name, None, progress.stage)
            except WeftError as error:
                problems[name] = error.problem
    if as_json:
        records = {name: to_record(calibration) for name, calibration in found.items()}
        output.print_json({"calibrations": records, "not measured": problems})
        return 0
    rows = [(label, *(show(calibration) for calibration in found.values())) for label, show in _FIGURES.items()]
    console = output.console()
    console.print(output.table("what devices were measured to do", ("", *found), rows))
    for name, problem in problems.items():
        console.print(f"{name}: {problem}", highlight=False)
    return 0


def _speed(dtype: DType) -> Callable[[Calibration], str]:
    def shown(calibration: Calibration) -> str:
        rate = dict(calibration.products).get(dtype)
        return "–" if rate is None else f"{rate / 1e9:,.0f} G/s"

    return shown


def _moved(transfer: Transfer) -> str:
    if transfer.bandwidth == inf:
        return "its memory is the host's"
    return f"{transfer.seconds * 1e6:.1f} µs + {transfer.bandwidth / 1e9:.1f} GB/s"


_FIGURES: dict[str, Callable[[Calibration], str]] = {
    "float32 arithmetic at most": lambda found: f"{found.peak.flops / 1e9:,.0f} GFLOP/s",
    **{f"products of {dtype}": _speed(dtype) for dtype in PRODUCT_TYPES},
    "memory": lambda found: f"{found.peak.bandwidth / 1e9:,.1f} GB/s",
    "caches": lambda found: f"{found.peak.cache_bandwidth / 1e9:,.0f} GB/s" if found.peak.cache_bytes else "–",
    "a run, beside its work": lambda found: f"{found.run_seconds * 1e6:.1f} µs",
    "a launch": lambda found: f"{found.launch_seconds * 1e6:.2f} µs",
    "a launch in a loop": lambda found: f"{found.iteration_seconds * 1e6:.2f} µs",
    "a step on the host between": lambda found: f"{found.host_step_seconds * 1e6:.1f} µs",
    "to the device": lambda found: _moved(found.upload),
    "to the host": lambda found: _moved(found.download),
}


def _print_policy(as_json: bool = False) -> int:
    settings = resolve_settings()
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
    return told
