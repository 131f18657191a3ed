"""`weft compare`: one model on several devices, layer by layer: which value departs first, and where errors grow."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

import weft
from weft.cli import inputs, output, values
from weft.cli.inputs import Given
from weft.compiler import LoadOptions, open_pipeline
from weft.report.comparison import CODE, TOLERANCES, Comparison, Deviation, Findings, compare
from weft.report.contenders import Contender, InFloat64, OnDevice
from weft.report.deviation import Number
from weft.report.layers import Layer, layers
from weft.runtime.progress import stages

DEFAULT_DEVICES = "reference,auto"
SHOWN_LAYERS = 24
AROUND = 3  # layers before and after one that is told of
BLOCKS = "▁▂▃▄▅▆▇█"
LEAST, MOST = -8.0, 0.0  # log10 of the errors that the picture tells apart
PICTURE_WIDTH = 72


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="a model on several devices, layer by layer: what departs first",
        description="Run a model on several devices, compare every value that its nodes compute, and tell which departs "
        "first. Errors are relative to the largest magnitude of a value. Inputs that are not given are random; dims that "
        "nothing gives a size are 1. The exit code is 1 if a value departs.",
    )
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    parser.add_argument(
        "--devices",
        default=DEFAULT_DEVICES,
        metavar="A,B,…",
        help="devices of weft, or onnxruntime; the first is what the others are compared with "
        f"(default {DEFAULT_DEVICES})",
    )
    parser.add_argument("--truth", action="store_true", help="compare all of them with a run in float64 instead")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=SOURCE", help="data for one input, as in weft run"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="DIM=SIZE", help="the size of a dynamic dim in made-up data"
    )
    parser.add_argument("--seed", type=values.seed, default=0, metavar="N", help="seed of the random data (default 0)")
    parser.add_argument(
        "--tolerance",
        type=values.positive,
        metavar="E",
        help="the error that any layer of floats may have (default: by type and depth, as the output states)",
    )
    parser.add_argument("--all", action="store_true", help="list all layers, and not only those that matter most")
    parser.add_argument("--json", action="store_true", help="print JSON, with all layers")


def run(args: argparse.Namespace) -> int:
    sizes = inputs.parse_sizes(args.shape)
    devices = [name.strip() for name in args.devices.split(",") if name.strip()]
    model = weft.load(args.model, device="reference")
    given = inputs.make_inputs(model.inputs, model.defaults, args.input, sizes, args.seed)
    arrays = {item.name: item.array for item in given}
    graph = model.source.graph
    contenders: list[Contender] = [OnDevice(device, args.model, device, arrays) for device in devices]
    if args.truth:
        contenders.insert(0, InFloat64(graph, arrays))
    with stages("comparing") as progress:
        comparison = compare(layers(graph, arrays), contenders[0], contenders[1:], args.tolerance, progress.stage)
    if args.json:
        output.print_json({"model": args.model, "sizes": sizes, **_record(comparison)})
    else:
        _print(comparison, args.all)
    return 0 if all(findings.agrees for findings in comparison.findings) else 1


# -- for programs ----------------------------------------------------------------------------------------------------


def _record(comparison: Comparison) -> dict[str, Any]:
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


def _findings_record(comparison: Comparison, findings: Findings) -> dict[str, Any]:
    return {
        "name": findings.contender,
        "agrees": findings.agrees,
        "first": _layer_record(comparison, findings, findings.first),
        "steepest": _layer_record(comparison, findings, findings.steepest),
        "outputs": {name: _deviation_record(deviation) for name, deviation in findings.outputs.items()},
    }


def _layer_record(comparison: Comparison, findings: Findings, number: int | None) -> dict[str, Any] | None:
    if number is None:
        return None
    layer = comparison.layers[number]
    place = {"number": number, "value": layer.value, "node": layer.node, "op": layer.op}
    return {**place, **_deviation_record(findings.deviations[number])}


def _deviation_record(deviation: Deviation) -> dict[str, Any]:
    distance = deviation.difference
    if distance is None:
        return {"unavailable": deviation.reason}
    return {
        "error": distance.error,
        "allowed": deviation.allowed,
        "departs": deviation.departs,
        "jump": deviation.jump,
        "scale": distance.scale,
        "worst": None if distance.worst is None else asdict(distance.worst),
        "note": distance.note,
    }


# -- for people ------------------------------------------------------------------------------------------------------


def _print(comparison: Comparison, every: bool) -> None:
    console = output.console()
    _print_layers(comparison, every, console)
    console.print()
    _print_picture(comparison, console)
    console.print()
    for findings in comparison.findings:
        _print_findings(comparison, findings, console)
    console.print(Text(_tolerance_text(comparison), "dim"))


def _print_layers(comparison: Comparison, every: bool, console: Console) -> None:
    shown = range(len(comparison.layers)) if every else _telling(comparison)
    several = len(comparison.findings) > 1
    columns = ["#", "op", "node"]
    for findings in comparison.findings:
        columns += [findings.contender if several else "error", "jump"]
    columns += ["" if several else "allowed"]
    rows: list[Sequence[object]] = []
    before = -1
    for number in shown:
        if number != before + 1:
            rows.append((Text("…", "dim"),))
        layer = comparison.layers[number]
        cells: list[object] = [number, layer.op, layer.node]
        for findings in comparison.findings:
            deviation = findings.deviations[number]
            cells += [_error_text(deviation), _jump_text(deviation, number == findings.steepest)]
        cells += ["" if several else f"{comparison.findings[0].deviations[number].allowed:.1e}"]
        rows.append(cells)
        before = number
    title = f"error against {comparison.base}"
    console.print(output.table(title, columns, rows, right=("#", "error", "jump", "allowed")))


def _telling(comparison: Comparison) -> list[int]:
    """The layers to show: those around what is told of, the last, and the largest jumps."""
    count = len(comparison.layers)
    if count <= SHOWN_LAYERS:
        return list(range(count))
    shown = {count - 1}
    for findings in comparison.findings:
        for number in (findings.first, findings.steepest):
            if number is not None:
                shown.update(range(max(number - AROUND, 0), min(number + AROUND + 1, count)))
    jumps = sorted(
        range(count), key=lambda n: max(findings.deviations[n].jump for findings in comparison.findings), reverse=True
    )
    for number in jumps:
        if len(shown) >= SHOWN_LAYERS:
            break
        shown.add(number)
    return sorted(shown)


def _error_text(deviation: Deviation) -> Text:
    if deviation.difference is None:
        return Text("–", "dim")
    return Text(_number_text(deviation.error, ".1e"), "bold red" if deviation.departs else "")


def _jump_text(deviation: Deviation, steepest: bool) -> Text:
    if deviation.difference is None or deviation.jump < 2:
        return Text("")
    return Text(f"× {_number_text(deviation.jump, '.0f')}", "bold" if steepest else "dim")


def _number_text(number: float, form: str) -> str:
    return format(number, form) if math.isfinite(number) else "∞"


def _print_picture(comparison: Comparison, console: Console) -> None:
    """Errors along the layers: a block for each stretch of them, as high as its largest error."""
    width = max(len(findings.contender) for findings in comparison.findings)
    count = len(comparison.layers)
    stretches = min(count, PICTURE_WIDTH)
    bounds = [count * number // stretches for number in range(stretches + 1)]
    for findings in comparison.findings:
        line = Text(f"{findings.contender:>{width}} ")
        for start, end in zip(bounds, bounds[1:]):
            part = findings.deviations[start:end]
            line.append(_block(max(d.error for d in part)), "red" if any(d.departs for d in part) else "cyan")
        console.print(line)
    told = f"error from 1e{LEAST:.0f} ({BLOCKS[0]}) to 1e{MOST:.0f} ({BLOCKS[-1]}), layers 0 to {count - 1}"
    console.print(Text(f"{'':>{width}} {told}", "dim"))


def _block(error: float) -> str:
    if error <= 0:
        return " "
    height = (min(math.log10(error), MOST) - LEAST) / (MOST - LEAST)
    return BLOCKS[max(0, min(int(height * len(BLOCKS)), len(BLOCKS) - 1))]


def _print_findings(comparison: Comparison, findings: Findings, console: Console) -> None:
    base, name = comparison.base, findings.contender
    if findings.first is None:
        worst = max((deviation.error for deviation in findings.deviations), default=0.0)
        compared = sum(deviation.difference is not None for deviation in findings.deviations)
        console.print(Text(f"{name} agrees with {base} in all {compared} layers: {worst:.1e} at most", "green"))
    else:
        layer, deviation = comparison.layers[findings.first], findings.deviations[findings.first]
        head = f"{name} departs from {base} first in layer {findings.first}, {_layer_text(layer)}"
        console.print(Text(output.printable(head), "bold red"))
        console.print(Text(output.printable(f"  {_difference_text(deviation, base, name)}")))
    if findings.steepest is not None and findings.steepest != findings.first:
        layer, deviation = comparison.layers[findings.steepest], findings.deviations[findings.steepest]
        what = f"its error grows most in layer {findings.steepest}, {_layer_text(layer)}"
        jump = f"{_number_text(deviation.jump, '.0f')} times that of what it reads, to {deviation.error:.1e}"
        console.print(Text(output.printable(f"  {what}: {jump}")))
    outputs = ", ".join(f"{name} {_number_text(deviation.error, '.1e')}" for name, deviation in findings.outputs.items())
    console.print(Text(output.printable(f"  outputs of the unchanged model: {outputs}"), "dim"))


def _layer_text(layer: Layer) -> str:
    return f"{layer.op} {layer.node}, value {layer.value}"


def _difference_text(deviation: Deviation, base: str, name: str) -> str:
    distance = deviation.difference
    assert distance is not None
    error = distance.note or f"error {distance.error:.1e}, allowed {deviation.allowed:.1e}"
    if distance.worst is None:
        return error
    place = ", ".join(map(str, distance.worst.index))
    expected, found = _element_text(distance.worst.expected), _element_text(distance.worst.found)
    return f"{error}: element [{place}] is {expected} on {base} and {found} on {name}"


def _element_text(element: Number) -> str:
    return f"{element:.9g}" if isinstance(element, (float, complex)) else repr(element)


def _tolerance_text(comparison: Comparison) -> str:
    if comparison.tolerance is not None:
        return f"allowed: {comparison.tolerance:g} of a value's largest magnitude; integers and texts must be equal"
    kinds = ", ".join(f"{dtype} {TOLERANCES[dtype]:g}" for dtype in list(TOLERANCES)[:6] if not dtype.is_complex)
    return (
        f"allowed, of a value's largest magnitude, by the coarsest type on the way: {kinds}, one step ({CODE:.3f}) after "
        "quantisation; times the root of the depth. Other integers and texts must be equal."
    )


def _given_text(given: Sequence[Given]) -> str:
    return ", ".join(f"{item.name} from {item.source}" for item in given)
