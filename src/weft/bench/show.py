"""Results as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from weft.bench.engines import JUDGE
from weft.bench.results import FIGURES, SUBJECT, BenchReport, Comparison, Measurement, ModelResult, means, mismatches
from weft.bench.rounds import Spread, geometric_mean
from weft.cli import output

NOT_KNOWN = "–"
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
    """The table, then what was left out and what is wrong, then the means."""
    rows = [row for model in report.models for row in _rows(model)]
    if rows:
        settings = report.settings
        title = f"{settings['device']}, {settings['threads']} threads"
        console.print(output.table(title, COLUMNS, rows, right=COLUMNS[2:], spare=SPARE))
        console.print()
    if report.settings.get("peak_flops"):
        peak = output.format_count(report.settings["peak_flops"], "FLOP/s")
        console.print(Text(f"peak: {peak} of float32 multiply-adds, measured on as many threads", "dim"))
    for line in missing:
        console.print(Text(f"not measured: {line}", "yellow"))
    for model in report.models:
        for engine, reason in model.failures.items():
            console.print(
                Text(
                    f"not measured: {engine} on {output.escape_unprintable(model.model)}: {_shortened(reason)}",
                    "yellow",
                )
            )
    for name, reason in report.left_out.items():
        console.print(Text(f"left out: {output.escape_unprintable(name)}: {reason}", "bold red"))
    for line in _loud_lines(report):
        console.print(Text(line, "bold white on red"))
    for line in mean_lines(report):
        console.print(line)
    for line in figure_lines(report):
        console.print(line)


def show_comparison(comparison: Comparison, console: Console) -> None:
    rows = [
        (
            change.model,
            output.format_seconds(change.before.median),
            quartiles(change.before),
            output.format_seconds(change.after.median),
            quartiles(change.after),
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
            console.print(Text(f"{engine} moved by {ratio:.3f}: so much is the machine, or another version", "dim"))
    for when, names in (("before", comparison.only_before), ("after", comparison.only_after)):
        if names:
            console.print(Text(f"only {when}: {', '.join(map(output.escape_unprintable, names))}", "yellow"))


def progress_line(result: ModelResult) -> str:
    """One model in a few words."""
    parts = []
    for found in result.measurements:
        ratio = result.ratio(found.engine)
        times = f" ({ratio:.2f}×)" if ratio is not None and found.engine != SUBJECT else ""
        differs = " DIFFERS" if found.agrees is False else ""
        parts.append(f"{found.engine} {output.format_seconds(found.run.median)}{times}{differs}")
    return f"{result.model}: {', '.join(parts)}"


def mean_lines(report: BenchReport) -> Iterator[str]:
    for mean in means(report):
        yield (
            f"{mean.engine} / {SUBJECT}: geometric mean {mean.ratio:.3f} over {mean.models} models, "
            f"worst {mean.worst[1]:.3f} ({output.escape_unprintable(mean.worst[0])}), "
            f"best {mean.best[1]:.3f} ({output.escape_unprintable(mean.best[0])})"
        )


def figure_lines(report: BenchReport) -> Iterator[str]:
    """What is to be fast beside the runs, for each engine that has such figures."""
    for engine in report.engines():
        found = [each for model in report.models if (each := model.of(engine)) is not None]
        parts = []
        for figure, of in FIGURES.items():
            if times := [seconds for each in found if (seconds := of(each))]:
                parts.append(f"{figure} {output.format_seconds(geometric_mean(times))}")
        yield f"{engine}: {', '.join(parts)} (geometric means)"


def quartiles(spread: Spread) -> str:
    """12.1–12.4 ms, both in the unit of the upper one where that leaves them readable."""
    lower, upper = output.format_seconds(spread.lower), output.format_seconds(spread.upper)
    (number, unit), (_, upper_unit) = lower.split(" "), upper.split(" ")
    return f"{number}–{upper}" if unit == upper_unit else f"{lower} – {upper}"


def _rows(result: ModelResult) -> Iterator[Sequence[object]]:
    for position, found in enumerate(result.measurements):
        ratio = result.ratio(found.engine)
        yield (
            result.model if position == 0 else "",
            _engine(found),
            output.format_seconds(found.run.median),
            quartiles(found.run),
            "" if found.engine == SUBJECT or ratio is None else Text(f"{ratio:.2f}", "green" if ratio >= 1 else "red"),
            output.format_seconds(found.cold.load),
            output.format_seconds(found.cached.load),
            _bytes(found.cold.memory),
            _bytes(found.cached.memory),
            NOT_KNOWN if found.share_of_peak is None else f"{found.share_of_peak:.1%}",
        )


def _engine(found: Measurement) -> Text:
    style = "bold red" if found.agrees is False else "bold" if found.engine == SUBJECT else ""
    return Text(f"{found.engine}{' DIFFERS' if found.agrees is False else ''}", style)


def _shortened(reason: str) -> str:
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON].rstrip()} …"


def _bytes(number: int | None) -> str:
    return NOT_KNOWN if number is None else output.format_bytes(number)


def _loud_lines(report: BenchReport) -> Iterator[str]:
    for model, found in mismatches(report.models):
        far = "cannot be compared" if found.difference is None else f"differ by {found.difference:.2g}"
        yield f"MISMATCH: {output.escape_unprintable(model)}: {found.engine}'s outputs {far} (of the largest magnitude)"
    for result in report.models:
        if any(found.agrees is None for found in result.measurements):
            how = f" ({JUDGE.missing})" if JUDGE.missing else ""
            yield f"NOT COMPARED: {output.escape_unprintable(result.model)}: {JUDGE.name} gave no outputs{how}"
