"""A comparison for people: a table of layers, a picture of errors along them, and what was found in sentences."""

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
AROUND = 3  # layers before and after one that is told of
BLOCKS = "▁▂▃▄▅▆▇█"
LEAST, MOST = -8, 0  # log10 of the errors that the picture tells apart
PICTURE_WIDTH = 72
NOTHING = "–"
NEXT_TO_NOTHING = 1e-30


def print_comparison(comparison: ModelComparison, given: Sequence[InputArray], every: bool) -> None:
    """All of it, the layers that tell most or every one."""
    console = output.console()
    _print_layers(comparison, every, console)
    console.print()
    _print_picture(comparison, console)
    for findings in comparison.findings:
        console.print()
        _print_findings(comparison, findings, console)
    console.print()
    console.print(Text(output.escape_unprintable(f"inputs: {', '.join(map(_given_text, given))}"), "dim"))
    console.print(Text(_tolerance_text(comparison), "dim"))


def _print_layers(comparison: ModelComparison, every: bool, console: Console) -> None:
    many = len(comparison.findings) > 1
    columns = ["#", "op", "node"]
    for findings in comparison.findings:
        columns += [findings.contender, "alone"] if many else ["error", "allowed", "jump", "alone"]
    rows: list[Sequence[object]] = []
    before = -1
    for number in range(len(comparison.layers)) if every else _telling(comparison):
        if number != before + 1:
            rows.append([Text("…", "dim"), *([""] * (len(columns) - 1))])
        before = number
        layer = comparison.layers[number]
        cells: list[object] = [number, layer.op, layer.node]
        for findings in comparison.findings:
            deviation = findings.deviations[number]
            error, alone = _error_text(deviation), _alone_text(deviation)
            allowed = Text(f"{deviation.allowed:.1e}" if math.isfinite(deviation.allowed) else NOTHING, "dim")
            cells += [error, alone] if many else [error, allowed, _jump_text(deviation), alone]
        rows.append(cells)
    numbers = [column for column in columns if column not in ("op", "node")]
    console.print(output.table(f"error against {comparison.base}", columns, rows, right=numbers))


def _telling(comparison: ModelComparison) -> list[int]:
    """The layers to show: those around what is told of, the last, and those that come closest to what is allowed."""
    count = len(comparison.layers)
    if count <= SHOWN_LAYERS:
        return list(range(count))
    shown = {count - 1}
    for findings in comparison.findings:
        for number in (findings.first, findings.steepest, *findings.wrong[:1]):
            if number is not None:
                shown.update(range(max(number - AROUND, 0), min(number + AROUND + 1, count)))
    shares = [max(_share(findings.deviations[number]) for findings in comparison.findings) for number in range(count)]
    closest = sorted(range(count), key=lambda number: shares[number], reverse=True)
    shown.update(closest[: max(SHOWN_LAYERS - len(shown), 0)])
    return sorted(shown)


def _share(deviation: Deviation) -> float:
    """How much of what it may be off a layer is off."""
    return deviation.error / max(deviation.allowed, NEXT_TO_NOTHING)


def _error_text(deviation: Deviation) -> Text:
    if deviation.difference is None:
        return Text(NOTHING, "dim")
    return Text(_number_text(deviation.error, ".1e"), "bold red" if deviation.departs else "")


def _alone_text(deviation: Deviation) -> Text:
    if deviation.own is None:
        return Text(NOTHING, "dim")
    return Text(_number_text(deviation.own.error, ".1e"), "bold red" if deviation.is_wrong else "dim")


def _jump_text(deviation: Deviation) -> str:
    visible = deviation.difference is not None and deviation.jump >= 2
    return f"× {_number_text(deviation.jump, '.0f')}" if visible else ""


def _number_text(number: float, form: str) -> str:
    return format(number, form) if math.isfinite(number) else "∞"


def _print_picture(comparison: ModelComparison, console: Console) -> None:
    """Errors along the layers: a block for each stretch of them, as high as its largest error."""
    width = max(len(findings.contender) for findings in comparison.findings)
    count = len(comparison.layers)
    stretches = min(count, PICTURE_WIDTH)
    bounds = [count * number // stretches for number in range(stretches + 1)] if stretches else []
    for findings in comparison.findings:
        line = Text(f"{findings.contender:>{width}} ")
        for start, end in pairwise(bounds):
            part = findings.deviations[start:end]
            line.append(_block(max(d.error for d in part)), "red" if any(d.departs for d in part) else "cyan")
        console.print(line)
    told = f"{BLOCKS[0]} 1e{LEAST} or less, {BLOCKS[-1]} near 1e{MOST} or more; layers 0 to {count - 1}"
    console.print(Text(f"{'':>{width}} {told}", "dim"))


def _block(error: float) -> str:
    if error <= 0:
        return " "
    height = (min(math.log10(error), MOST) - LEAST) / (MOST - LEAST)
    return BLOCKS[max(0, min(int(height * len(BLOCKS)), len(BLOCKS) - 1))]


def _print_findings(comparison: ModelComparison, findings: Findings, console: Console) -> None:
    base, name = comparison.base, findings.contender
    if findings.first is not None:
        layer, deviation = comparison.layers[findings.first], findings.deviations[findings.first]
        _say(console, f"{name} departs from {base} first in layer {findings.first}: {_layer_text(layer)}", "bold red")
        assert deviation.difference is not None
        _say(console, f"  {_difference_text(deviation.difference, deviation.allowed, base, name)}")
    else:
        compared = [deviation.error for deviation in findings.deviations if deviation.difference is not None]
        worst = f"{max(compared, default=0.0):.1e} at most"
        _say(console, f"{name} agrees with {base} in all {len(compared)} layers that both have: {worst}", "green")
    _print_alone(comparison, findings, console)
    _print_outputs(comparison, findings, console)
    _print_reasons("layers are not compared", [deviation.reason for deviation in findings.deviations], console)
    alone = [deviation.own_reason for deviation in findings.deviations]
    _print_reasons("layers are not run on their own", alone, console)


def _print_alone(comparison: ModelComparison, findings: Findings, console: Console) -> None:
    """Which nodes are wrong from equal inputs; where there are none, what made small errors large."""
    run = [deviation.own for deviation in findings.deviations if deviation.own is not None]
    for number in findings.wrong[:SHOWN_WRONG]:
        deviation = findings.deviations[number]
        assert deviation.own is not None
        _say(
            console, f"  wrong on its own, from equal inputs: layer {number}, {_layer_text(comparison.layers[number])}"
        )
        told = _difference_text(deviation.own, deviation.own_allowed, comparison.base, findings.contender)
        _say(console, f"    {told}")
    if len(findings.wrong) > SHOWN_WRONG:
        _say(console, f"  and {len(findings.wrong) - SHOWN_WRONG} more layers")
    steepest = findings.steepest
    if findings.first is None or findings.wrong or not run or steepest is None:
        return
    largest = max(distance.error for distance in run)
    _say(
        console,
        f"  no layer is wrong on its own: from equal inputs, none of {len(run)} is off by more than {largest:.1e}",
    )
    layer, deviation = comparison.layers[steepest], findings.deviations[steepest]
    times = f"{_number_text(deviation.jump, '.0f')} times that of what it reads, to {deviation.error:.1e}"
    _say(
        console, f"  the model makes small errors large, most of all in layer {steepest}, {_layer_text(layer)}: {times}"
    )


def _print_outputs(comparison: ModelComparison, findings: Findings, console: Console) -> None:
    told = (f"{name} {_number_text(deviation.error, '.1e')}" for name, deviation in findings.outputs.items())
    departs = any(deviation.departs for deviation in findings.outputs.values())
    _say(console, f"  outputs of the unchanged model: {', '.join(told)}", "red" if departs else "dim")
    hidden = findings.hidden
    if hidden is None:
        return
    _say(console, "  they depart, and do not where all layers are asked for: a kernel of several nodes is wrong")
    if hidden.cure is not None:
        layer = comparison.layers[hidden.cure]
        _say(console, f"  it no longer departs when layer {hidden.cure} alone is asked for: {_layer_text(layer)}")
    elif hidden.first is not None:
        layer = comparison.layers[hidden.first]
        _say(
            console, f"  asked for one at a time, the first that departs is layer {hidden.first}: {_layer_text(layer)}"
        )


def _print_reasons(what: str, reasons: Sequence[str], console: Console) -> None:
    given = [reason for reason in reasons if reason]
    if given:
        told = "; ".join(list(dict.fromkeys(given))[:SHOWN_REASONS])
        _say(console, f"  {len(given)} {what}: {told}", "yellow")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(output.escape_unprintable(text), style))


def _layer_text(layer: ModelLayer) -> str:
    return (
        f"{layer.op} {layer.node}" if layer.value.startswith(layer.node) else f"{layer.op} {layer.node} ({layer.value})"
    )


def _difference_text(distance: Difference, allowed: float, base: str, name: str) -> str:
    error = distance.note or f"error {distance.error:.1e}, allowed {allowed:.1e}"
    if distance.worst is None:
        return error
    place = ", ".join(map(str, distance.worst.index))
    expected, found = _element_text(distance.worst.expected), _element_text(distance.worst.found)
    return f"{error}: element [{place}] is {expected} on {base} and {found} on {name}"


def _element_text(element: Number) -> str:
    return f"{element:.9g}" if isinstance(element, (float, complex)) else repr(element)


def _given_text(item: InputArray) -> str:
    return f"{item.name} {output.format_shape(item.array.shape)} from {item.source}"


def _tolerance_text(comparison: ModelComparison) -> str:
    if comparison.tolerance is not None:
        return f"allowed: {comparison.tolerance:g} of a value's largest magnitude; integers and texts must be equal"
    usual = ", ".join(f"{TOLERANCES[dtype]:g} for {dtype}" for dtype in list(TOLERANCES)[:6] if not dtype.is_complex)
    return (
        f"allowed, of a value's largest magnitude: {usual}, by the coarsest type on the way; after quantisation to 8 "
        f"bits one step, or {CODE:.3f}; times the root of the depth; {ALONE} times for a node on its own. Other "
        "integers and texts must be equal."
    )
