"""Print a comparison: a table of layers, a bar chart of their errors, and the findings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from weft.cli import output
from weft.cli.inputs import InputArray
from weft.report.comparison import ALONE, CODE, TOLERANCES, Deviation, Findings, ModelComparison
from weft.report.deviation import Difference, Number
from weft.report.layers import ModelLayer

SHOWN_LAYERS = 16
SHOWN_WRONG = 3
SHOWN_REASONS = 2
AROUND = 3  # layers before and after an important one
BLOCKS = "▁▂▃▄▅▆▇█"
MIN_EXPONENT, MAX_EXPONENT = -8, 0  # of the errors in the chart
CHART_WIDTH = 72
NOTHING = "–"
TINY = 1e-30


def print_comparison(comparison: ModelComparison, inputs: Sequence[InputArray], show_all: bool) -> None:
    """Print a comparison with the most important layers, or all of them."""
    console = output.console()
    _print_layers(comparison, show_all, console)
    console.print()
    _print_chart(comparison, console)
    for findings in comparison.findings:
        console.print()
        _print_findings(comparison, findings, console)
    console.print()
    console.print(Text(output.escape_unprintable(f"inputs: {', '.join(map(_input_text, inputs))}"), "dim"))
    console.print(Text(_tolerance_text(comparison), "dim"))


def _print_layers(comparison: ModelComparison, show_all: bool, console: Console) -> None:
    has_several = len(comparison.findings) > 1
    columns = ["#", "op", "node"]
    for findings in comparison.findings:
        columns += [findings.contender, "alone"] if has_several else ["error", "allowed", "jump", "alone"]
    rows: list[Sequence[object]] = []
    before = -1
    for number in range(len(comparison.layers)) if show_all else _important_layers(comparison):
        if number != before + 1:
            rows.append([Text("…", "dim"), *([""] * (len(columns) - 1))])
        before = number
        layer = comparison.layers[number]
        cells: list[object] = [number, layer.op, layer.node]
        for findings in comparison.findings:
            deviation = findings.deviations[number]
            error, alone = _error_text(deviation), _alone_text(deviation)
            allowed = Text(f"{deviation.allowed:.1e}" if math.isfinite(deviation.allowed) else NOTHING, "dim")
            cells += [error, alone] if has_several else [error, allowed, _jump_text(deviation), alone]
        rows.append(cells)
    numbers = [column for column in columns if column not in ("op", "node")]
    console.print(output.table(f"error against {comparison.base}", columns, rows, right=numbers))


def _important_layers(comparison: ModelComparison) -> list[int]:
    """Return the layers around the findings, the last one, and those closest to their tolerance."""
    count = len(comparison.layers)
    if count <= SHOWN_LAYERS:
        return list(range(count))
    shown = {count - 1}
    for findings in comparison.findings:
        for number in (findings.first, findings.steepest, *findings.wrong[:1]):
            if number is not None:
                shown.update(range(max(number - AROUND, 0), min(number + AROUND + 1, count)))
    ratios = [
        max(_tolerance_ratio(findings.deviations[number]) for findings in comparison.findings)
        for number in range(count)
    ]
    closest = sorted(range(count), key=lambda number: ratios[number], reverse=True)
    shown.update(closest[: max(SHOWN_LAYERS - len(shown), 0)])
    return sorted(shown)


def _tolerance_ratio(deviation: Deviation) -> float:
    return deviation.error / max(deviation.allowed, TINY)


def _error_text(deviation: Deviation) -> Text:
    if deviation.difference is None:
        return Text(NOTHING, "dim")
    return Text(_number_text(deviation.error, ".1e"), "bold red" if deviation.departs else "")


def _alone_text(deviation: Deviation) -> Text:
    if deviation.own is None:
        return Text(NOTHING, "dim")
    return Text(_number_text(deviation.own.error, ".1e"), "bold red" if deviation.is_wrong else "dim")


def _jump_text(deviation: Deviation) -> str:
    is_shown = deviation.difference is not None and deviation.jump >= 2
    return f"× {_number_text(deviation.jump, '.0f')}" if is_shown else ""


def _number_text(number: float, form: str) -> str:
    return format(number, form) if math.isfinite(number) else "∞"


def _print_chart(comparison: ModelComparison, console: Console) -> None:
    """Print errors along the layers: a block for each chunk of layers, as high as its largest error."""
    width = max(len(findings.contender) for findings in comparison.findings)
    count = len(comparison.layers)
    chunks = min(count, CHART_WIDTH)
    bounds = [count * number // chunks for number in range(chunks + 1)] if chunks else []
    for findings in comparison.findings:
        line = Text(f"{findings.contender:>{width}} ")
        for start, end in pairwise(bounds):
            chunk = findings.deviations[start:end]
            line.append(_block(max(d.error for d in chunk)), "red" if any(d.departs for d in chunk) else "cyan")
        console.print(line)
    legend = (
        f"{BLOCKS[0]} 1e{MIN_EXPONENT} or less, {BLOCKS[-1]} near 1e{MAX_EXPONENT} or more; layers 0 to {count - 1}"
    )
    console.print(Text(f"{'':>{width}} {legend}", "dim"))


def _block(error: float) -> str:
    if error <= 0:
        return " "
    height = (min(math.log10(error), MAX_EXPONENT) - MIN_EXPONENT) / (MAX_EXPONENT - MIN_EXPONENT)
    return BLOCKS[max(0, min(int(height * len(BLOCKS)), len(BLOCKS) - 1))]


def _print_findings(comparison: ModelComparison, findings: Findings, console: Console) -> None:
    base, name = comparison.base, findings.contender
    if findings.first is not None:
        layer, deviation = comparison.layers[findings.first], findings.deviations[findings.first]
        _print_line(
            console, f"{name} differs from {base} first in layer {findings.first}: {_layer_text(layer)}", "bold red"
        )
        assert deviation.difference is not None
        _print_line(console, f"  {_difference_text(deviation.difference, deviation.allowed, base, name)}")
    else:
        compared = [deviation.error for deviation in findings.deviations if deviation.difference is not None]
        worst = f"error at most {max(compared, default=0.0):.1e}"
        _print_line(console, f"{name} agrees with {base} in all {len(compared)} common layers: {worst}", "green")
    _print_alone(comparison, findings, console)
    _print_outputs(comparison, findings, console)
    _print_reasons("layers are not compared", [deviation.reason for deviation in findings.deviations], console)
    alone = [deviation.own_reason for deviation in findings.deviations]
    _print_reasons("layers are not run on their own", alone, console)


def _print_alone(comparison: ModelComparison, findings: Findings, console: Console) -> None:
    """Print the nodes that are wrong from equal inputs; without any, the layer that amplifies errors most."""
    differences = [deviation.own for deviation in findings.deviations if deviation.own is not None]
    for number in findings.wrong[:SHOWN_WRONG]:
        deviation = findings.deviations[number]
        assert deviation.own is not None
        _print_line(
            console, f"  wrong on its own, from equal inputs: layer {number}, {_layer_text(comparison.layers[number])}"
        )
        text = _difference_text(deviation.own, deviation.own_allowed, comparison.base, findings.contender)
        _print_line(console, f"    {text}")
    if len(findings.wrong) > SHOWN_WRONG:
        _print_line(console, f"  and {len(findings.wrong) - SHOWN_WRONG} more layers")
    steepest = findings.steepest
    if findings.first is None or findings.wrong or not differences or steepest is None:
        return
    largest = max(difference.error for difference in differences)
    _print_line(
        console,
        f"  no layer is wrong on its own: from equal inputs, the largest error of {len(differences)} is {largest:.1e}",
    )
    layer, deviation = comparison.layers[steepest], findings.deviations[steepest]
    growth = f"{_number_text(deviation.jump, '.0f')} times the error of its inputs, {deviation.error:.1e}"
    _print_line(
        console, f"  the model amplifies small errors, most of all in layer {steepest}, {_layer_text(layer)}: {growth}"
    )


def _print_outputs(comparison: ModelComparison, findings: Findings, console: Console) -> None:
    errors = (f"{name} {_number_text(deviation.error, '.1e')}" for name, deviation in findings.outputs.items())
    departs = any(deviation.departs for deviation in findings.outputs.values())
    _print_line(console, f"  outputs of the unchanged model: {', '.join(errors)}", "red" if departs else "dim")
    hidden = findings.hidden
    if hidden is None:
        return
    _print_line(console, "  they differ, but not if all layers are computed as outputs: a fused kernel is wrong")
    if hidden.cure is not None:
        layer = comparison.layers[hidden.cure]
        _print_line(
            console, f"  the difference disappears if layer {hidden.cure} alone becomes an output: {_layer_text(layer)}"
        )
    elif hidden.first is not None:
        layer = comparison.layers[hidden.first]
        _print_line(
            console, f"  computed one at a time, the first layer that differs is {hidden.first}: {_layer_text(layer)}"
        )


def _print_reasons(problem: str, reasons: Sequence[str], console: Console) -> None:
    reasons = [reason for reason in reasons if reason]
    if reasons:
        listing = "; ".join(list(dict.fromkeys(reasons))[:SHOWN_REASONS])
        _print_line(console, f"  {len(reasons)} {problem}: {listing}", "yellow")


def _print_line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(output.escape_unprintable(text), style))


def _layer_text(layer: ModelLayer) -> str:
    return (
        f"{layer.op} {layer.node}" if layer.value.startswith(layer.node) else f"{layer.op} {layer.node} ({layer.value})"
    )


def _difference_text(difference: Difference, allowed: float, base: str, name: str) -> str:
    error = difference.note or f"error {difference.error:.1e}, allowed {allowed:.1e}"
    worst = difference.worst
    if worst is None:
        return error
    index = ", ".join(map(str, worst.index))
    values = f"{_element_text(worst.expected)} on {base} and {_element_text(worst.actual)} on {name}"
    return f"{error}: element [{index}] is {values}"


def _element_text(element: Number) -> str:
    return f"{element:.9g}" if isinstance(element, (float, complex)) else repr(element)


def _input_text(item: InputArray) -> str:
    return f"{item.name} {output.format_shape(item.array.shape)} from {item.source}"


def _tolerance_text(comparison: ModelComparison) -> str:
    if comparison.tolerance is not None:
        return f"allowed: {comparison.tolerance:g} of a value's largest magnitude; integers and strings must be equal"
    by_type = ", ".join(f"{TOLERANCES[dtype]:g} for {dtype}" for dtype in list(TOLERANCES)[:6] if not dtype.is_complex)
    return (
        f"allowed, of a value's largest magnitude: {by_type}, by the coarsest type that a value depends on; after "
        f"quantisation to 8 bits one step, or {CODE:.3f}; times the square root of the depth; {ALONE} times for a node "
        "on its own. Other integers and strings must be equal."
    )
