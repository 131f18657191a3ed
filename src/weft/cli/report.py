"""`weft report`: show where a model runs and why, and what each device computes."""

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
    ("what each device would compute", "weft report model.onnx --all"),
    ("devices in order of preference", "weft report model.onnx --device cuda,webgpu,cpu"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("report", help="show where a model runs and why, and what each device computes")
    options.add_model(parser)
    options.add_loading(parser)
    parser.add_argument("--all", action="store_true", help="compile for all devices that may run the model")
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
        console.print(output.table(f"ranking by {report.pick}", ("device", "time of a run"), ranked))
    rows = [(service.device, "serves", service.reason) for service in report.services]
    rows += [(attempt.device, f"failed in {attempt.stage}", attempt.reason) for attempt in report.attempts]
    console.print()
    console.print(output.table("history", ("device", "event", "reason"), rows))
    shares = [(share.device, share.kernels, share.launches, len(share.host_steps)) for share in report.shares]
    columns = ("device", "kernels", "launches", "steps on the host")
    console.print()
    console.print(output.table("compiled programs", columns, shares, right=columns[1:]))
    for share in report.shares:
        console.print(f"{share.device}: {share.rounding}", highlight=False)
    host_steps = [
        (share.device, step.node, step.step, step.reason) for share in report.shares for step in share.host_steps
    ]
    if host_steps:
        console.print()
        console.print(output.table("steps on the host", ("device", "node", "step", "reason"), host_steps))
