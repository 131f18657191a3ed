"""`weft plan`: the memory that a model needs, known before it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

import weft
from weft.cli import options, output
from weft.cli.sizes import sizes_for
from weft.errors import InputError
from weft.plan.limits import alive_at_peak
from weft.plan.program import ProgramPlan, launch_count
from weft.plan.verify import verify_plan
from weft.report.arena_map import ArenaMap, has_text, png, svg
from weft.runtime.memory import Memory

SHOWN_TENSORS = 12
EXAMPLES = (
    ("for the usual sizes, which are said", "weft plan model.onnx"),
    ("for a batch of 8, with a drawing of the arena", "weft plan model.onnx --batch 8 -o arena.svg"),
    ("whether it fits, before it runs", "weft plan model.onnx --memory-limit 500MB"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="the memory that a model needs, known before it runs",
        description="Plan the memory of a run without running: weights, the arena of intermediate values, what is in "
        "it at the peak. Dynamic dims that are not given get usual sizes, which are said.",
    )
    options.add_model(parser)
    options.add_sizes(parser, "to plan for")
    options.add_loading(parser, "what to plan for")
    parser.add_argument("--verify", action="store_true", help="prove that no two values disturb each other")
    options.add_json(parser)
    options.add_output(parser, "draw the arena over time as .svg or .png", "--picture")


def run(args: argparse.Namespace) -> int:
    if args.output is not None and args.output.suffix.lower() not in (".svg", ".png"):
        raise InputError(f"--output {args.output}: neither .svg nor .png", hint="name a file such as arena.svg")
    model = weft.load(args.model, **options.load_arguments(args))
    sizes = sizes_for(args, model.inputs)
    memory = model.memory(sizes)
    plan, _ = model.plan(sizes)
    if args.verify:
        _verify(plan, memory)
    if args.output is not None:
        _draw(plan, memory, model.file, args.output)
    if args.json:
        output.print_json(_record(plan, memory, args.verify))
        return 0
    console = output.console()
    _print(plan, memory, args.verify, console)
    if args.output is not None:
        console.print(f"picture: {output.escape_unprintable(str(args.output))}")
        if args.output.suffix.lower() == ".png" and not has_text():
            console.print("It has no text: that needs Pillow (pip install pillow). An .svg has it without.")
    return 0


def _verify(plan: ProgramPlan, memory: Memory) -> None:
    for part in plan.sections:
        verify_plan(part.section, part.plan, part.constants, memory.sizes)


def _draw(plan: ProgramPlan, memory: Memory, file: str, path: Path) -> None:
    part = plan.busiest
    if part is None:
        raise InputError("there is no arena to draw: nothing of this model is native code with known sizes")
    peak = max((one.first for one in alive_at_peak(part.plan)), default=0)
    said = ", ".join(f"{name} = {size}" for name, size in memory.sizes.items())
    title = f"Memory of {Path(file).name}"
    drawing = ArenaMap(title, part.plan.allocations, part.plan.arena_bytes, launch_count(part.plan), peak, said)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".svg":
        path.write_text(svg(drawing), encoding="utf-8")
    else:
        path.write_bytes(png(drawing))


def _record(plan: ProgramPlan, memory: Memory, verified: bool) -> dict[str, Any]:
    """Everything that `weft plan` tells, as plain data."""
    part = plan.busiest
    return {
        "sizes": dict(memory.sizes),
        "guessed": list(memory.guessed),
        "weights_bytes": memory.weights,
        "arena_bytes": memory.arena,
        "lower_bound_bytes": memory.lower_bound,
        "sum_bytes": memory.without_reuse,
        "workspace_bytes": memory.workspace,
        "inputs_bytes": memory.inputs,
        "outputs_bytes": memory.outputs,
        "peak_bytes": memory.peak,
        "unplanned": list(memory.unplanned),
        "verified": verified,
        "peak": [_describe(one) for one in alive_at_peak(part.plan)] if part is not None else [],
        "allocations": [
            {"section": number, **_describe(one)}
            for number, section in enumerate(plan.sections)
            for one in section.plan.allocations
        ],
    }


def _describe(one: Any) -> dict[str, Any]:
    return {
        "name": one.name,
        "nodes": one.origin,
        "offset": one.offset,
        "bytes": one.size,
        "first": one.first,
        "last": one.last,
    }


def _print(plan: ProgramPlan, memory: Memory, verified: bool, console: Console) -> None:
    def amount(number: int) -> str:
        return f"{output.format_bytes(number)} ({number:,})"

    rows: list[tuple[str, object]] = []
    if memory.sizes:
        rows.append(("sizes", output.format_sizes(memory.sizes, memory.guessed)))
    ratio = f", {memory.arena / memory.lower_bound:.3f} × the lower bound" if memory.lower_bound else ""
    rows += [
        ("weights", amount(memory.weights)),
        ("arena", amount(memory.arena) + ratio),
        ("lower bound", amount(memory.lower_bound)),
        ("without reuse", amount(memory.without_reuse)),
        ("workspace", amount(memory.workspace)),
        ("inputs", f"{amount(memory.inputs)}, the caller's"),
        ("outputs", amount(memory.outputs)),
        ("peak", amount(memory.peak)),
    ]
    if memory.unplanned:
        rows.append(("not counted", f"{len(memory.unplanned)} nodes whose sizes the data decide"))
    if verified:
        rows.append(("verified", f"{len(plan.sections)} section{'s' if len(plan.sections) != 1 else ''}"))
    console.print(output.facts(rows))
    part = plan.busiest
    alive = alive_at_peak(part.plan) if part is not None else []
    if alive:
        shown = [
            (output.escape_unprintable(one.name), output.format_bytes(one.size), one.origin.replace(" + ", ", "))
            for one in alive[:SHOWN_TENSORS]
        ]
        console.print()
        console.print(output.table("in the arena at the peak", ("tensor", "bytes", "nodes"), shown, right=("bytes",)))
        if len(alive) > SHOWN_TENSORS:
            console.print(f"and {len(alive) - SHOWN_TENSORS} smaller ones")
