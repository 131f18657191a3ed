"""`weft info`: what is in a model, without running it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

import weft
from weft.cli import options, output
from weft.cli.sizes import check_sizes, sizes_of_file
from weft.compiler import is_defined
from weft.cost.programs import at_sizes, costs_by_origin, program_cost
from weft.frontend import read_model
from weft.ir.dims import Dim
from weft.ir.graph import OnnxModel
from weft.ir.specs import TensorSpec, spec
from weft.loading import open_graph
from weft.report.summary import count_ops, find_dynamic_dims, summarize_weights, walk_nodes
from weft.runtime.model import Model

LONGEST_EXPRESSION = 120


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "info", help="what is in a model: inputs, outputs, ops, parameters, FLOPs, dynamic dims"
    )
    options.add_model(parser)
    options.add_sizes(parser, "that FLOPs are counted for")
    parser.add_argument("--dump", metavar="DIR", help="write each stage of the compiler into this folder")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    sizes = sizes_of_file(args)
    record = collect(args.model, sizes, args.dump)
    if args.json:
        output.print_json(record)
    else:
        _print(record, output.console())
    return 0


def collect(file: str, sizes: Mapping[str, int], dump: str | None = None) -> dict[str, Any]:
    """Everything `weft info` tells, as plain data. A model that can be read but not compiled has a `problem`."""
    try:
        model = weft.load(file, device="reference", dump=dump)
    except weft.UnsupportedModelError as error:
        source = read_model(open_graph(file), is_defined=is_defined)
        specs = [[spec(value.name, value.type) for value in values if value.type is not None]
                 for values in (source.graph.inputs, source.graph.outputs)]  # fmt: skip
        return {**_file_facts(source, *specs), "problem": str(error)}
    check_sizes(model.inputs, sizes)
    return _file_facts(model.source, model.inputs, model.outputs) | _trace_facts(model, sizes)


def _file_facts(source: OnnxModel, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    weights = summarize_weights(source.graph)
    counts = count_ops(source.graph)
    return {
        "file": source.file,
        "producer": source.producer,
        "ir_version": source.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in source.opsets.items()},
        "metadata": dict(source.metadata),
        "inputs": [_describe(spec) for spec in inputs],
        "outputs": [_describe(spec) for spec in outputs],
        "nodes": counts.total(),
        "ops": [
            {"domain": domain or "ai.onnx", "op": op, "count": count} for (domain, op), count in counts.most_common()
        ],
        "parameters": weights.elements,
        "weight_tensors": weights.tensors,
        "weight_bytes": weights.stored_bytes,
        "weight_dtypes": weights.dtypes,
    }


def _trace_facts(model: Model, sizes: Mapping[str, int]) -> dict[str, Any]:
    cost = program_cost(model.program)
    kinds = {node.name: (node.domain, node.op) for node in walk_nodes(model.source.graph)}
    by_op: dict[tuple[str, str], Dim] = {}
    for origin, flops in costs_by_origin(model.program).items():
        if origin in kinds:
            by_op[kinds[origin]] = by_op.get(kinds[origin], 0) + flops
    return {
        "ops": [
            {
                "domain": domain or "ai.onnx",
                "op": op,
                "count": count,
                "flops": _number(at_sizes(by_op.get((domain, op), 0), sizes)),
            }
            for (domain, op), count in count_ops(model.source.graph).most_common()
        ],
        "steps": len(model.program.steps),
        "flops": _number(at_sizes(cost.flops, sizes)),
        "flops_uncounted": cost.unknown,
        "sizes": dict(sizes),
        "dynamic": [
            {"dim": dim.name, "places": dim.places, "from_data": dim.from_data}
            for dim in find_dynamic_dims(model.program, [spec.name for spec in model.outputs])
        ],
    }


def _describe(spec: TensorSpec) -> dict[str, Any]:
    if spec.element is None:
        return {"name": spec.name, "type": str(spec.type)}
    return {"name": spec.name, "dtype": spec.element.value, "shape": spec.shape}


def _number(flops: Dim) -> int | str:
    """An int where the sizes are known, else the expression as text."""
    return flops if isinstance(flops, int) else str(flops)


def _print(record: dict[str, Any], console: Console) -> None:
    console.print(Text(output.printable(record["file"]), "bold"))
    console.print(output.facts(_facts(record)))
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
            (dim["dim"], "the data" if dim["from_data"] else "the inputs", _shorten(", ".join(dim["places"])))
            for dim in record["dynamic"]
        ]
        console.print()
        console.print(output.table("dynamic dims", ("dim", "decided by", "where"), rows))
    operators = [(op["op"], op["domain"], op["count"], _short_flops(op.get("flops", 0))) for op in record["ops"]]
    columns = ("operator", "domain", "nodes", "FLOPs")
    console.print()
    console.print(output.table("operators", columns, operators, right=("nodes", "FLOPs")))


def _facts(record: dict[str, Any]) -> list[tuple[str, object]]:
    opsets = ", ".join(f"{domain} {version}" for domain, version in record["opsets"].items())
    weights = f"{output.format_bytes(record['weight_bytes'])} {', '.join(record['weight_dtypes'])}"
    facts: list[tuple[str, object]] = [
        ("producer", record["producer"] or "not named"),
        ("opsets", f"{opsets} (IR version {record['ir_version']})"),
        ("parameters", f"{record['parameters']:,} in {record['weight_tensors']} tensors"),
        ("weights", weights.rstrip()),
    ]
    if "problem" in record:
        facts += [
            ("nodes", f"{record['nodes']:,}"),
            ("cannot run", Text(output.printable(record["problem"].splitlines()[0]), "red")),
        ]
    else:
        facts += [
            ("nodes", f"{record['nodes']:,}, compiled to {record['steps']:,} steps"),
            ("FLOPs", _flops_text(record)),
        ]
    return facts + [(f"metadata {key}", _shorten(value)) for key, value in record["metadata"].items()]


def _flops_text(record: dict[str, Any]) -> str:
    flops = record["flops"]
    at = ", ".join(f"{name} = {size}" for name, size in record["sizes"].items())
    if isinstance(flops, int):
        text = f"{output.format_count(flops)} ({flops:,})" + (f" at {at}" if at else "")
    else:
        text = f"{_shorten(flops)} (give sizes with --shape DIM=SIZE for a number)"
    if record["flops_uncounted"]:
        text += f"; {len(record['flops_uncounted'])} nodes do work that only the data decide"
    return text


def _short_flops(flops: int | str) -> str:
    return _shorten(flops, 48) if isinstance(flops, str) else output.format_count(flops) if flops else ""


def _shorten(text: str, longest: int = LONGEST_EXPRESSION) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
