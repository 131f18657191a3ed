"""`weft report`: where a model runs and why, what each device does of it, and what was tried and failed."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

import weft
from weft.cli import options, output
from weft.runtime.device_report import DeviceReport

EXAMPLES = (
    ("where a model runs, and why", "weft report model.onnx"),
    ("what each device would do of it", "weft report model.onnx --all"),
    ("a chain of devices, of which the first that works serves", "weft report model.onnx --device cuda,webgpu,cpu"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("report", help="where a model runs and why, and what each device does of it")
    options.add_model(parser)
    options.add_loading(parser)
    parser.add_argument("--all", action="store_true", help="compile it for every device that it may run on")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    model = weft.load(args.model, **options.load_arguments(args))
    if args.all:
        model.warm_all()
    report = model.report()
    if args.json:
        output.print_json(asdict(report) | {"attempts": [attempt._asdict() for attempt in report.attempts]})
    else:
        _print(report, output.console())
    return 0


def _print(report: DeviceReport, console: Console) -> None:
    console.print(Text.assemble(f"{report.file} runs on ", (report.device, "bold")))
    if report.ranking:
        ranked = [(entry.device, entry.reason) for entry in report.ranking]
        console.print()
        console.print(output.table(f"what decided, by {report.pick}", ("device", "a run takes"), ranked))
    rows = [(service.device, "serves", service.reason) for service in report.services]
    rows += [(attempt.device, f"failed in {attempt.stage}", attempt.reason) for attempt in report.attempts]
    console.print()
    console.print(output.table("what happened", ("device", "what", "why"), rows))
    shares = [(share.device, share.kernels, share.launches, len(share.host_steps)) for share in report.shares]
    columns = ("compiled for", "kernels", "launches", "steps on the host")
    console.print()
    console.print(output.table("what each does", columns, shares, right=columns[1:]))
    for share in report.shares:
        console.print(f"{share.device}: {share.rounding}", highlight=False)
    left = [(share.device, step.node, step.step, step.reason) for share in report.shares for step in share.host_steps]
    if left:
        console.print()
        console.print(output.table("steps left to the host", ("device", "node", "step", "why"), left))
