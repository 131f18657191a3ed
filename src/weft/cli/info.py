"""`weft info`: show the contents of a model without running it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

import weft
from weft.cli import options, output
from weft.cli.sizes import check_sizes, sizes_of_file
from weft.cost.programs import at_sizes, costs_by_origin, program_cost
from weft.frontend import read_model
from weft.ir.dims import Dim
from weft.ir.graph import OnnxModel
from weft.ir.program import TensorProgram, bodies
from weft.ir.specs import TensorSpec, spec
from weft.loading import open_graph
from weft.plan.usual_sizes import likely_sizes
from weft.report.summary import count_ops, find_dynamic_dims, summarize_weights, walk_nodes
from weft.runtime.model import Model
from weft.runtime.model_files import is_defined

MAX_TEXT = 120
UNKNOWN = "–"
EXAMPLES = (
    ("inputs, outputs and operators", "weft info model.onnx"),
    ("the cost of a batch of 8", "weft info model.onnx --shape batch=8"),
    ("every stage of the compiler, as text", "weft info model.onnx --dump stages"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "info",
        help="show inputs, outputs, operators and cost of a model",
        description="Show the contents of a model without running it: inputs, outputs, operators, parameters, FLOPs, "
        "dynamic dims. FLOPs are counted for the sizes of --shape; other dynamic dims get typical sizes.",
    )
    options.add_model(parser)
    options.add_sizes(parser, "for the FLOPs")
    parser.add_argument("--symbolic", action="store_true", help="also show FLOPs as an expression of the dynamic dims")
    parser.add_argument("--dump", metavar="DIR", help="write each stage of the compiler into this folder")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    sizes = sizes_of_file(args)
    record = collect(args.model, sizes, args.dump, args.symbolic)
    if args.json:
        output.print_json(record)
    else:
        _print(record, output.console())
    return 0


def collect(file: str, sizes: Mapping[str, int], dump: str | None = None, symbolic: bool = False) -> dict[str, Any]:
    """Return the facts as plain data; a model that can be read but not compiled has a `problem`."""
    try:
        model = weft.load(file, device="reference", dump=dump)
    except weft.UnsupportedModelError as error:
        source = read_model(open_graph(file), is_defined=is_defined)
        specs = [[spec(value.name, value.type) for value in values if value.type is not None]
                 for values in (source.graph.inputs, source.graph.outputs)]  # fmt: skip
        return {**_file_facts(source, *specs), "problem": str(error)}
    check_sizes(model.inputs, sizes)
    return _file_facts(model.source, model.inputs, model.outputs) | _trace_facts(model, sizes, symbolic)


def _file_facts(source: OnnxModel, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    weights = summarize_weights(source.graph)
    counts = count_ops(source.graph)
    return {
        "file": source.file,
        "producer": source.producer,
        "ir_version": source.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in source.opsets.items()},
        "metadata": dict(source.metadata),
        "inputs": [_describe_spec(spec) for spec in inputs],
        "outputs": [_describe_spec(spec) for spec in outputs],
        "nodes": counts.total(),
        "ops": [
            {"domain": domain or "ai.onnx", "op": op, "count": count} for (domain, op), count in counts.most_common()
        ],
        "parameters": weights.elements,
        "weight_tensors": weights.tensors,
        "weight_bytes": weights.stored_bytes,
        "weight_dtypes": weights.dtypes,
    }


def _trace_facts(model: Model, user_sizes: Mapping[str, int], symbolic: bool) -> dict[str, Any]:
    program = model.program
    cost = program_cost(program)
    sizes = likely_sizes(program.inputs, program.guards, user_sizes)
    kinds = {node.name: (node.domain, node.op) for node in walk_nodes(model.source.graph)}
    by_op: dict[tuple[str, str], Dim] = {}
    for origin, flops in costs_by_origin(program).items():
        if origin in kinds:
            by_op[kinds[origin]] = by_op.get(kinds[origin], 0) + flops
    facts = {
        "ops": [
            {
                "domain": domain or "ai.onnx",
                "op": op,
                "count": count,
                "flops": _constant_flops(at_sizes(by_op.get((domain, op), 0), sizes)),
            }
            for (domain, op), count in count_ops(model.source.graph).most_common()
        ],
        "steps": _count_steps(program),
        "flops": _constant_flops(at_sizes(cost.flops, sizes)),
        "flops_uncounted": cost.unknown,
        "sizes": sizes,
        "guessed": [name for name in sizes if name not in user_sizes],
        "dynamic": [
            {"dim": dim.name, "places": dim.places, "from_data": dim.from_data}
            for dim in find_dynamic_dims(program, [spec.name for spec in model.outputs])
        ],
    }
    return {**facts, "flops_symbolic": str(cost.flops)} if symbolic else facts


def _count_steps(program: TensorProgram) -> int:
    return sum(1 + sum(map(_count_steps, bodies(step.primitive))) for step in program.steps)


def _describe_spec(spec: TensorSpec) -> dict[str, Any]:
    if spec.element is None:
        return {"name": spec.name, "type": str(spec.type)}
    return {"name": spec.name, "dtype": spec.element.value, "shape": spec.shape}


def _constant_flops(flops: Dim) -> int | None:
    """Return FLOPs that do not depend on data; None for others."""
    return flops if isinstance(flops, int) else None


def _print(record: dict[str, Any], console: Console) -> None:
    console.print(Text(output.escape_unprintable(record["file"]), "bold"))
    console.print(output.facts(_fact_rows(record)))
    for title in ("inputs", "outputs"):
        rows = [
            (
                spec["name"],
                spec.get("dtype") or spec["type"],
                output.format_shape(spec["shape"]) if "shape" in spec else "",
            )
            for spec in record[title]
        ]
        console.print()
        console.print(output.table(title, ("name", "dtype", "shape"), rows))
    if record.get("dynamic"):
        rows = [
            (dim["dim"], "data" if dim["from_data"] else "inputs", _shorten(", ".join(dim["places"])))
            for dim in record["dynamic"]
        ]
        console.print()
        console.print(output.table("dynamic dims", ("dim", "depends on", "used in"), rows))
    operators = [(op["op"], op["domain"], op["count"], _format_flops(op.get("flops", 0))) for op in record["ops"]]
    columns = ("operator", "domain", "nodes", "FLOPs")
    console.print()
    console.print(output.table("operators", columns, operators, right=("nodes", "FLOPs")))


def _fact_rows(record: dict[str, Any]) -> list[tuple[str, object]]:
    opsets = ", ".join(f"{domain} {version}" for domain, version in record["opsets"].items())
    weights = f"{output.format_bytes(record['weight_bytes'])} {', '.join(record['weight_dtypes'])}"
    facts: list[tuple[str, object]] = [
        ("producer", record["producer"] or "unknown"),
        ("opsets", f"{opsets} (IR version {record['ir_version']})"),
        ("parameters", f"{record['parameters']:,} in {record['weight_tensors']} tensors"),
        ("weights", weights.rstrip()),
    ]
    if "problem" in record:
        facts += [
            ("nodes", f"{record['nodes']:,}"),
            ("problem", Text(output.escape_unprintable(record["problem"].splitlines()[0]), "red")),
        ]
    else:
        facts += [
            ("nodes", f"{record['nodes']:,}, compiled to {record['steps']:,} steps"),
            ("FLOPs", _flops_text(record)),
        ]
        if "flops_symbolic" in record:
            facts.append(("as an expression", record["flops_symbolic"]))
    return facts + [(f"metadata {key}", _shorten(" ".join(value.split()))) for key, value in record["metadata"].items()]


def _flops_text(record: dict[str, Any]) -> str:
    flops = record["flops"]
    if flops is None:
        text = "depend on the data"
    else:
        at = output.format_sizes(record["sizes"], record["guessed"])
        text = f"{output.format_count(flops)} ({flops:,}){f' at {at}' if at else ''}"
    if record["flops_uncounted"]:
        text += f"; without {len(record['flops_uncounted'])} nodes whose work depends on the data"
    return text


def _format_flops(flops: int | None) -> str:
    return UNKNOWN if flops is None else output.format_count(flops) if flops else ""


def _shorten(text: str, longest: int = MAX_TEXT) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
