"""`weft bench --generate`: tokens per second of language models, in weft and in onnxruntime-genai."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from weft.bench.engines import Engine, Setup
from weft.bench.generation import GenerationCase, GenerationReport, measure_generation
from weft.bench.generation_engines import GENAI, GENERATION_ENGINES, WEFT
from weft.cli import option_types, output
from weft.cli.output_files import write_text
from weft.errors import InputError
from weft.generation.cache_size import SEQUENCES
from weft.generation.folder import open_folder
from weft.runtime.devices import choose
from weft.threads import usable_cores

COLUMNS = ("prompt", "batch", "engine", "decode", "× weft", "prefill", "× weft", "first token", "same tokens")
SPARE = ("same tokens",)
SMALLEST_VOCABULARY = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `--generate`."""
    group = parser.add_argument_group("text generation")
    group.add_argument(
        "--generate", metavar="FOLDER", help="time a language model: tokens per second, and the time to the first token"
    )
    group.add_argument("--prompt-lengths", default="32,512", metavar="N,...", help="tokens of prompts (default 32,512)")
    group.add_argument("--batches", default="1", metavar="N,...", help="prompts at once (default 1)")
    group.add_argument(
        "--new-tokens", type=option_types.count, default=64, metavar="N", help="tokens after each prompt (default 64)"
    )
    group.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="PYTHON",
        help="interpreter of an environment that has onnxruntime-genai (default: this one)",
    )


def run(args: argparse.Namespace, default_engines: str) -> int:
    peers, missing = _choose_peers(args, default_engines)
    folder = open_folder(args.generate)
    cases = [
        GenerationCase(length, batch, args.new_tokens)
        for length in _parse_counts("--prompt-lengths", args.prompt_lengths)
        for batch in _parse_counts("--batches", args.batches)
    ]
    longest = max(case.prompt_length for case in cases) + args.new_tokens
    most = max(case.batch for case in cases)
    room = longest * max(1, -(-most // SEQUENCES))  # so that the cache has room for all prompts of a batch
    if folder.context_length is not None:
        room = max(longest, min(room, folder.context_length))
    load_options = {"max_length": room, "max_batch": most, "memory_limit": args.memory_limit}
    threads = args.threads or usable_cores()
    setup = Setup(args.generate, choose(args.device).name, threads, args.precision, load_options)
    console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=args.json)
    with console.status(folder.name) as status:
        vocabulary = folder.vocabulary or SMALLEST_VOCABULARY
        report = measure_generation(
            setup, peers, cases, args.seconds, vocabulary, python=args.peer_python, report=status.update
        )
    if args.json:
        output.print_json(report.record() | {"missing": missing})
    else:
        _print(report, missing, output.console())
    if args.output is not None:
        import json

        write_text(args.output, json.dumps(output.plain_data(report.record()), indent=2) + "\n")
    return 0


def _choose_peers(args: argparse.Namespace, default_engines: str) -> tuple[list[Engine], list[str]]:
    names = GENAI.name if args.against == default_engines else args.against
    chosen = [name.strip() for name in names.split(",") if name.strip() not in ("", "none", WEFT.name)]
    for name in chosen:
        if name not in GENERATION_ENGINES:
            hint = f"with --generate, the engines are {GENAI.name}, or none"
            raise InputError(f"--against {name}: no such engine", hint=hint)
    engines = [GENERATION_ENGINES[name] for name in dict.fromkeys(chosen)]
    if args.peer_python != sys.executable:
        return engines, []
    missing = [f"{engine.name}: {engine.missing}" for engine in engines if engine.missing is not None]
    return [engine for engine in engines if engine.missing is None], missing


def _parse_counts(option: str, text: str) -> list[int]:
    try:
        return [option_types.count(part) for part in text.split(",")]
    except argparse.ArgumentTypeError as error:
        raise InputError(f"{option} {text}: {error}", hint="write numbers, separated by commas: 32,512") from None


def _print(report: GenerationReport, missing: Sequence[str], console: Console) -> None:
    settings = report.settings
    title = f"{report.model} on {settings['device']}, {settings['threads']} threads, tokens per second"
    console.print(output.table(title, COLUMNS, _rows(report), right=COLUMNS[3:], spare=SPARE))
    console.print()
    for name, seconds in report.load_seconds.items():
        memory = report.peak_memory.get(name)
        peak = "" if memory is None else f", peak memory {output.format_bytes(memory)}"
        version = report.versions.get(name, "")
        console.print(Text(f"{name} {version}: loads in {output.format_seconds(seconds)}{peak}", "dim"))
    for name, reason in report.failures.items():
        console.print(Text(f"not measured: {name}: {output.escape_unprintable(reason)}", "yellow"))
    for line in missing:
        console.print(Text(f"not measured: {line}; --peer-python names another environment", "yellow"))


def _rows(report: GenerationReport) -> Iterator[Sequence[object]]:
    subjects = {
        (figures.prompt_length, figures.batch): figures for figures in report.figures if figures.engine == WEFT.name
    }
    for figures in report.figures:
        subject = subjects[figures.prompt_length, figures.batch]
        is_subject = figures is subject
        yield (
            str(figures.prompt_length) if is_subject else "",
            str(figures.batch) if is_subject else "",
            Text(figures.engine, "bold" if is_subject else ""),
            f"{figures.decode_rate:,.1f}",
            "" if is_subject else _ratio(subject.decode_rate / figures.decode_rate),
            f"{figures.prefill_rate:,.1f}",
            "" if is_subject else _ratio(subject.prefill_rate / figures.prefill_rate),
            output.format_seconds(figures.first_seconds),
            "" if is_subject else f"{figures.same_tokens:.0%}",
        )


def _ratio(ratio: float) -> Text:
    """Format how many times as fast weft is."""
    return Text(f"{ratio:.2f}", "green" if ratio >= 1 else "red")
