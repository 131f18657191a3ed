"""`weft compare`: compare a model on several devices, layer by layer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from weft.cli import inputs, option_types, options, output
from weft.cli.comparison_table import print_comparison
from weft.cli.inputs import InputArray
from weft.ir.dtypes import from_numpy
from weft.ir.specs import signature
from weft.loading import open_pipeline
from weft.opset.lower import build_untraced_program
from weft.report.compare import DEFAULT_DEVICES, PEER, check_devices, compare_on_devices
from weft.report.comparison import Deviation, Findings, ModelComparison
from weft.report.deviation import Difference
from weft.runtime.device_report import rounding_text
from weft.runtime.options import NARROW, PRECISIONS, LoadOptions

LOAD_OPTIONS = ("threads", "memory_limit", "prefer")  # of all devices
EXAMPLES = (
    ("the best device and the exact reference", "weft compare model.onnx"),
    ("the CPU and onnxruntime, on your data", "weft compare model.onnx -i x=x.npy --devices onnxruntime,cpu"),
    ("a model before and after a change", "weft compare model.onnx --against changed.onnx"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="compare a model on several devices, layer by layer",
        description="Run a model on several devices and compare every value that its nodes compute: which differs "
        "first, where errors grow, and which nodes are wrong on their own, from equal inputs. Errors are relative to "
        "the largest magnitude of a value. Without data, inputs are random, and dynamic dims get typical sizes. The "
        "exit code is 1 if a value differs by more than the tolerance.",
    )
    options.add_model(parser)
    parser.add_argument(
        "--devices",
        metavar="A,B,…",
        help=f"devices of weft, or {PEER}; the first is the baseline (default {','.join(DEFAULT_DEVICES)})",
    )
    parser.add_argument("--truth", action="store_true", help="use a run in float64 as the baseline")
    parser.add_argument(
        "--against",
        metavar="FILE",
        help="compare MODEL on the first device (or in float64) with this other file on all devices, by the names of "
        "values (default device: the best one)",
    )
    inputs.add_inputs(parser)
    parser.add_argument(
        "--tolerance",
        type=option_types.positive,
        metavar="E",
        help="the tolerance of all layers of floats (default: by type and depth, as the output states)",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="the precision of the compared devices (default float32); the baseline computes in float32. tf32 and fast "
        "have the tolerance of a model in float16",
    )
    options.add_loading(parser, without=tuple(name for name in options.LOADING if name not in LOAD_OPTIONS))
    parser.add_argument("--quick", action="store_true", help="do not also run each node on its own")
    parser.add_argument("--all", action="store_true", help="list all layers, not only the most important ones")
    options.add_json(parser, "print JSON instead of tables, with all layers")


def run(args: argparse.Namespace) -> int:
    names = None if args.devices is None else [name.strip() for name in args.devices.split(",") if name.strip()]
    devices = check_devices(names, truth=args.truth, against=args.against is not None)
    source = open_pipeline(args.model, LoadOptions(device="reference")).read()
    input_set = inputs.inputs_for(args, signature(source.graph, build_untraced_program(source.graph)), lambda: source)
    loading = {name: getattr(args, name) for name in LOAD_OPTIONS}
    settings = (args.truth, args.against, args.tolerance, args.precision, args.quick, loading)
    comparison = compare_on_devices(args.model, input_set.arrays, devices, *settings)
    if args.json:
        facts = {"model": args.model, "against": args.against, "sizes": input_set.sizes}
        facts |= {"inputs": _inputs_record(input_set.items), "precision": args.precision}
        output.print_json({**facts, **_record(comparison), "narrowed": comparison.narrowed})
    else:
        print_comparison(comparison, input_set.items, args.all)
        if args.precision in NARROW:
            for name, products in comparison.narrowed.items():
                output.console().print(f"{name}: {rounding_text(args.precision, products)}", highlight=False)
    return 0 if comparison.agrees else 1


def _inputs_record(items: Sequence[InputArray]) -> list[dict[str, Any]]:
    return [
        {
            "name": item.name,
            "dtype": from_numpy(item.array.dtype).value,
            "shape": item.array.shape,
            "source": item.source,
        }
        for item in items
    ]


def _record(comparison: ModelComparison) -> dict[str, Any]:
    return {
        "base": comparison.base,
        "tolerance": comparison.tolerance,
        "contenders": [_findings_record(comparison, findings) for findings in comparison.findings],
        "layers": [
            {
                "number": number,
                **asdict(layer),
                "on": {
                    findings.contender: _deviation_record(findings.deviations[number])
                    for findings in comparison.findings
                },
            }
            for number, layer in enumerate(comparison.layers)
        ],
    }


def _findings_record(comparison: ModelComparison, findings: Findings) -> dict[str, Any]:
    hidden = findings.hidden
    return {
        "name": findings.contender,
        "agrees": findings.agrees,
        "first": _layer_record(comparison, findings, findings.first),
        "wrong_alone": [_layer_record(comparison, findings, number) for number in findings.wrong],
        "steepest": _layer_record(comparison, findings, findings.steepest),
        "outputs": {name: _deviation_record(deviation) for name, deviation in findings.outputs.items()},
        "only_unchanged": None
        if hidden is None
        else {
            "first": _layer_record(comparison, findings, hidden.first),
            "cured_by": _layer_record(comparison, findings, hidden.cure),
        },
    }


def _layer_record(comparison: ModelComparison, findings: Findings, number: int | None) -> dict[str, Any] | None:
    if number is None:
        return None
    layer = comparison.layers[number]
    place = {"number": number, "value": layer.value, "node": layer.node, "op": layer.op}
    return {**place, **_deviation_record(findings.deviations[number])}


def _deviation_record(deviation: Deviation) -> dict[str, Any]:
    if deviation.difference is None:
        return {"unavailable": deviation.reason, "alone": None}
    alone = None if deviation.own is None else _difference_record(deviation.own, deviation.own_allowed)
    return {
        **_difference_record(deviation.difference, deviation.allowed),
        "jump": deviation.jump,
        "alone": alone,
        "not_alone": deviation.own_reason or None,
    }


def _difference_record(difference: Difference, allowed: float) -> dict[str, Any]:
    worst = None if difference.worst is None else asdict(difference.worst)
    if worst is not None:
        worst["found"] = worst.pop("actual")
    return {**asdict(difference), "worst": worst, "allowed": allowed, "departs": difference.error > allowed}
