"""`weft plan`: predict the memory that a model needs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

import weft
from weft.cli import options, output
from weft.cli.sizes import sizes_for
from weft.errors import InputError
from weft.ir.work import Allocation
from weft.plan.limits import alive_at_peak
from weft.plan.program import ProgramPlan, launch_count
from weft.plan.verify import verify_plan
from weft.quantities import format_plural
from weft.report.arena_map import ArenaMap, draw_png, draw_svg
from weft.runtime.memory import Memory

SHOWN_TENSORS = 12
EXAMPLES = (
    ("for typical sizes", "weft plan model.onnx"),
    ("for a batch of 8, with a drawing of the arena", "weft plan model.onnx --batch 8 -o arena.svg"),
    ("check whether it fits", "weft plan model.onnx --memory-limit 500MB"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="predict the memory that a model needs",
        description="Plan the memory of a run without running the model: weights, the arena of intermediate values, "
        "and its contents at the peak. Dynamic dims without --shape get typical sizes.",
    )
    options.add_model(parser)
    options.add_sizes(parser, "to plan for")
    options.add_loading(parser, "device to plan for")
    parser.add_argument(
        "--verify", action="store_true", help="prove that no value overwrites another that is still needed"
    )
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
        console.print(f"drawing: {output.escape_unprintable(str(args.output))}")
    return 0


def _verify(plan: ProgramPlan, memory: Memory) -> None:
    for part in plan.sections:
        verify_plan(part.section, part.plan, part.constants, memory.sizes)


def _draw(plan: ProgramPlan, memory: Memory, file: str, path: Path) -> None:
    part = plan.busiest
    if part is None:
        raise InputError("there is no arena to draw: no part of the model is native code with known sizes")
    peak = max((value.first for value in alive_at_peak(part.plan)), default=0)
    sizes = ", ".join(f"{name} = {size}" for name, size in memory.sizes.items())
    title = f"Memory of {Path(file).name}"
    drawing = ArenaMap(title, part.plan.allocations, part.plan.arena_bytes, launch_count(part.plan), peak, sizes)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".svg":
        path.write_text(draw_svg(drawing), encoding="utf-8")
    else:
        path.write_bytes(draw_png(drawing))


def _record(plan: ProgramPlan, memory: Memory, verified: bool) -> dict[str, Any]:
    """Return the plan as plain data."""
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
        "peak": [_allocation_record(value) for value in alive_at_peak(part.plan)] if part is not None else [],
        "allocations": [
            {"section": number, **_allocation_record(value)}
            for number, section in enumerate(plan.sections)
            for value in section.plan.allocations
        ],
    }


def _allocation_record(value: Allocation) -> dict[str, Any]:
    return {
        "name": value.name,
        "nodes": value.origin,
        "offset": value.offset,
        "bytes": value.size,
        "first": value.first,
        "last": value.last,
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
        ("inputs", f"{amount(memory.inputs)}, owned by the caller"),
        ("outputs", amount(memory.outputs)),
        ("peak", amount(memory.peak)),
    ]
    if memory.unplanned:
        rows.append(("not counted", f"{len(memory.unplanned)} nodes whose sizes depend on the data"))
    if verified:
        rows.append(("verified", format_plural(len(plan.sections), "section")))
    console.print(output.facts(rows))
    part = plan.busiest
    alive = alive_at_peak(part.plan) if part is not None else []
    if alive:
        rows_at_peak = [
            (output.escape_unprintable(value.name), output.format_bytes(value.size), value.origin.replace(" + ", ", "))
            for value in alive[:SHOWN_TENSORS]
        ]
        console.print()
        console.print(
            output.table("in the arena at the peak", ("tensor", "bytes", "nodes"), rows_at_peak, right=("bytes",))
        )
        if len(alive) > SHOWN_TENSORS:
            console.print(f"and {len(alive) - SHOWN_TENSORS} smaller tensors")
