"""Print results of benchmarks as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from weft.bench.engines import REFERENCE
from weft.bench.results import (
    FIGURES,
    SUBJECT,
    BenchReport,
    Comparison,
    Measurement,
    ModelResult,
    find_mismatches,
    mean_ratios,
)
from weft.bench.rounds import Spread, geometric_mean
from weft.cli import output

UNKNOWN = "–"
LONGEST_REASON = 240
COLUMNS = (
    "model",
    "engine",
    "median",
    "quartiles",
    "× weft",
    "load cold",
    "cached",
    "memory cold",
    "cached",
    "of peak",
)
SPARE = ("quartiles", "of peak", "cached")
STYLES = {"faster": "green", "slower": "bold red", "same": "dim"}


def show_report(report: BenchReport, missing: Sequence[str], console: Console) -> None:
    """Print the table, then problems, then the means."""
    rows = [row for model in report.models for row in _table_rows(model)]
    if rows:
        settings = report.settings
        title = f"{settings['device']}, {settings['threads']} threads"
        console.print(output.table(title, COLUMNS, rows, right=COLUMNS[2:], spare=SPARE))
        console.print()
    if report.settings.get("peak_flops"):
        peak = output.format_count(report.settings["peak_flops"], "FLOP/s")
        console.print(Text(f"peak: {peak} of float32 multiply-adds, measured on the same number of threads", "dim"))
    for line in missing:
        console.print(Text(f"not measured: {line}", "yellow"))
    for model in report.models:
        for engine, reason in model.failures.items():
            console.print(
                Text(
                    f"not measured: {engine} on {output.escape_unprintable(model.model)}: {_shorten_reason(reason)}",
                    "yellow",
                )
            )
    for name, reason in report.left_out.items():
        console.print(Text(f"left out: {output.escape_unprintable(name)}: {reason}", "bold red"))
    for line in _warnings(report):
        console.print(Text(line, "bold white on red"))
    for line in format_means(report):
        console.print(line)
    for line in format_figures(report):
        console.print(line)


def show_comparison(comparison: Comparison, console: Console) -> None:
    rows = [
        (
            change.model,
            output.format_seconds(change.before.median),
            format_quartiles(change.before),
            output.format_seconds(change.after.median),
            format_quartiles(change.after),
            f"{change.ratio:.3f}",
            Text(change.verdict, STYLES[change.verdict]),
        )
        for change in comparison.changes
    ]
    columns = ("model", "before", "quartiles", "after", "quartiles", "before / after", "beyond the spread")
    if rows:
        console.print(output.table("", columns, rows, right=columns[1:6]))
        console.print()
        mean = geometric_mean(change.ratio for change in comparison.changes)
        console.print(f"geometric mean of before / after: {mean:.3f} over {len(rows)} models (above 1: faster now)")
    for figure, (ratio, count) in comparison.figures.items():
        console.print(f"{figure}: before / after {ratio:.3f} over {count} models")
    for engine, ratio in comparison.drift.items():
        if engine != SUBJECT:
            console.print(Text(f"{engine} moved by {ratio:.3f}, because of the machine or another version", "dim"))
    for when, names in (("before", comparison.only_before), ("after", comparison.only_after)):
        if names:
            console.print(Text(f"only {when}: {', '.join(map(output.escape_unprintable, names))}", "yellow"))


def format_progress(result: ModelResult) -> str:
    """Format the result of one model as a line."""
    parts = []
    for measurement in result.measurements:
        ratio = result.ratio(measurement.engine)
        times = f" ({ratio:.2f}×)" if ratio is not None and measurement.engine != SUBJECT else ""
        differs = " DIFFERS" if measurement.agrees is False else ""
        parts.append(f"{measurement.engine} {output.format_seconds(measurement.run.median)}{times}{differs}")
    return f"{result.model}: {', '.join(parts)}"


def format_means(report: BenchReport) -> Iterator[str]:
    for mean in mean_ratios(report):
        yield (
            f"{mean.engine} / {SUBJECT}: geometric mean {mean.ratio:.3f} over {mean.models} models, "
            f"worst {mean.worst[1]:.3f} ({output.escape_unprintable(mean.worst[0])}), "
            f"best {mean.best[1]:.3f} ({output.escape_unprintable(mean.best[0])})"
        )


def format_figures(report: BenchReport) -> Iterator[str]:
    """Yield a line of durations besides the runs for each engine."""
    for engine in report.engines():
        measurements = [each for model in report.models if (each := model.of(engine)) is not None]
        parts = []
        for figure, get in FIGURES.items():
            if times := [seconds for each in measurements if (seconds := get(each))]:
                parts.append(f"{figure} {output.format_seconds(geometric_mean(times))}")
        yield f"{engine}: {', '.join(parts)} (geometric means)"


def format_quartiles(spread: Spread) -> str:
    """Format quartiles: 12.1–12.4 ms, with one unit if both have the same."""
    lower, upper = output.format_seconds(spread.lower), output.format_seconds(spread.upper)
    (number, unit), (_, upper_unit) = lower.split(" "), upper.split(" ")
    return f"{number}–{upper}" if unit == upper_unit else f"{lower} – {upper}"


def _table_rows(result: ModelResult) -> Iterator[Sequence[object]]:
    for position, measurement in enumerate(result.measurements):
        ratio = result.ratio(measurement.engine)
        yield (
            result.model if position == 0 else "",
            _engine_cell(measurement),
            output.format_seconds(measurement.run.median),
            format_quartiles(measurement.run),
            ""
            if measurement.engine == SUBJECT or ratio is None
            else Text(f"{ratio:.2f}", "green" if ratio >= 1 else "red"),
            output.format_seconds(measurement.cold.load),
            output.format_seconds(measurement.cached.load),
            _format_memory(measurement.cold.memory),
            _format_memory(measurement.cached.memory),
            UNKNOWN if measurement.share_of_peak is None else f"{measurement.share_of_peak:.1%}",
        )


def _engine_cell(measurement: Measurement) -> Text:
    style = "bold red" if measurement.agrees is False else "bold" if measurement.engine == SUBJECT else ""
    return Text(f"{measurement.engine}{' DIFFERS' if measurement.agrees is False else ''}", style)


def _shorten_reason(reason: str) -> str:
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON].rstrip()} …"


def _format_memory(number: int | None) -> str:
    return UNKNOWN if number is None else output.format_bytes(number)


def _warnings(report: BenchReport) -> Iterator[str]:
    for model, measurement in find_mismatches(report.models):
        distance = "cannot be compared" if measurement.difference is None else f"differ by {measurement.difference:.2g}"
        name = output.escape_unprintable(model)
        yield f"MISMATCH: {name}: {measurement.engine}'s outputs {distance} (of the largest magnitude)"
    for result in report.models:
        if any(measurement.agrees is None for measurement in result.measurements):
            reason = f" ({REFERENCE.missing})" if REFERENCE.missing else ""
            yield f"NOT COMPARED: {output.escape_unprintable(result.model)}: {REFERENCE.name} gave no outputs{reason}"
