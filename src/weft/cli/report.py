"""`weft report`: where a model runs and why, what each device does of it, and what was tried and failed."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from rich.console import Console

import weft
from weft.cli import output
from weft.runtime.device_report import DeviceReport


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("report", help="where a model runs and why, and what each device does of it")
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    parser.add_argument(
        "--device",
        default="auto",
        metavar="D",
        help="a device, or several with commas: a chain of which the first that works serves (default: auto)",
    )
    parser.add_argument("--all", action="store_true", help="compile it for every device that it may run on")
    parser.add_argument("--strict", action="store_true", help="fail instead of going on to another device")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    device = args.device.split(",") if "," in args.device else args.device
    model = weft.load(args.model, device=device, strict=args.strict)
    if args.all:
        model.warm_all()
    report = model.report()
    if args.json:
        output.print_json(asdict(report))
    else:
        _print(report, output.console())
    return 0


def _print(report: DeviceReport, console: Console) -> None:
    console.print(f"{report.file} runs on [bold]{report.device}[/bold]", highlight=False)
    if report.ranking:
        ranked = [(entry.device, entry.reason) for entry in report.ranking]
        console.print(output.table(f"what decided, by {report.pick}", ("device", "a run takes"), ranked))
    rows = [(service.device, "serves", service.reason) for service in report.services]
    rows += [(attempt.device, f"failed in {attempt.stage}", attempt.reason) for attempt in report.attempts]
    console.print(output.table("what happened", ("device", "what", "why"), rows))
    shares = [(share.device, str(share.kernels), str(len(share.host_steps))) for share in report.shares]
    console.print(output.table("what each device does", ("device", "kernels", "steps left to the host"), shares))
    moved = [(share.device, step.node, step.step, step.reason) for share in report.shares for step in share.host_steps]
    if moved:
        console.print(output.table("steps left to the host", ("device", "node", "step", "why"), moved))
