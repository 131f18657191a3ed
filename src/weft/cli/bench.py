"""`weft bench`: time a model in weft and in other engines, side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import weft
from weft.backends.cpu.peak import measure_peak
from weft.bench import results, show
from weft.bench.engines import PEERS, WEFT, Engine
from weft.bench.facts import machine_facts
from weft.bench.measure import SEED, BenchCase, Options, measure
from weft.bench.results import BenchReport
from weft.cli import bench_generation, inputs, option_types, options, output
from weft.cli.kernel_table import print_kernels
from weft.cli.output_files import write_text
from weft.cli.sizes import declared_signature, sizes_of_file
from weft.errors import InputError, WeftError
from weft.report.nodes import ops_by_node
from weft.runtime.devices import choose
from weft.threads import usable_cores

NAMES = ("onnxruntime", "openvino", "torch", "tinygrad", "wonnx")
DEFAULT_NAMES = NAMES[:-1]
"""Engines that run on CPUs and accept any ONNX file."""

CPU_DEVICES = ("cpu", "reference")
"""Devices to which the measured peak of the CPU applies."""

SizesOf = Callable[[Path], Mapping[str, int]]
"""Returns the sizes of --shape and --batch for a file."""

FindCase = Callable[[str, SizesOf], BenchCase]
EXAMPLES = (
    ("in weft and in all other installed engines", "weft bench model.onnx"),
    ("weft alone, for a batch of 8 on four threads", "weft bench model.onnx --against none --batch 8 --threads 4"),
    ("tokens per second of a language model", "weft bench --generate folder --against onnxruntime-genai"),
    ("compare two measurements", "weft bench --diff before.json after.json"),
)


def add_parser(subparsers: Any) -> None:
    add_arguments(
        subparsers.add_parser(
            "bench",
            help="time models in weft and in other engines",
            description="Time models in weft and in all other installed engines, which take turns, in float32 with "
            "the same threads and inputs. Inputs are random unless --input names data. Loading time and memory are "
            "measured in new processes; outputs are compared with those of onnxruntime.",
        )
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="ONNX files")
    parser.set_defaults(late_files="models")
    parser.add_argument(
        "--against",
        default=",".join(DEFAULT_NAMES),
        metavar="ENGINES",
        help=f"other engines, separated by commas: {', '.join(NAMES)}; none for weft alone "
        f"(default: {','.join(DEFAULT_NAMES)})",
    )
    inputs.add_inputs(parser, positional=False)
    parser.add_argument(
        "--seconds",
        type=option_types.seconds,
        default=3.0,
        metavar="S",
        help="seconds for each model (default 3)",
    )
    parser.add_argument("--kernels", action="store_true", help="time each kernel of weft, relative to the roofline")
    parser.add_argument(
        "--diff", nargs=2, type=Path, metavar=("A", "B"), help="compare two files of results: before and after"
    )
    bench_generation.add_arguments(parser)
    options.add_output(parser, "write the results as JSON, for --diff")
    options.add_json(parser)
    options.add_loading(parser, "where weft runs", without=("strict", "cache", "trusted"))


def find_file(name: str, sizes: SizesOf) -> BenchCase:
    """Return the case of a model file."""
    path = Path(name)
    if not path.is_file():
        raise InputError(f"{name}: no such file", hint="weft bench takes ONNX files; -o FILE writes results")
    return BenchCase(path.stem, path, sizes=sizes(path))


def run(args: argparse.Namespace, find: FindCase = find_file) -> int:
    """Run the command; `find` returns the case of a MODEL argument, with the sizes of the options."""
    if args.diff:
        return _diff(args)
    if args.generate:
        return bench_generation.run(args, ",".join(DEFAULT_NAMES))
    if not args.models:
        raise InputError(
            "no model to time", hint="weft bench MODEL..., weft bench --generate FOLDER, or weft bench --diff A B"
        )
    cases, left_out = _find_cases(args, find)
    return _time_kernels(args, cases) if args.kernels else _bench(args, cases, left_out)


def _find_cases(args: argparse.Namespace, find: FindCase) -> tuple[list[BenchCase], dict[str, str]]:
    """Return the cases with their inputs, and why others are left out; raise the first error if no case is left."""

    def sizes_of(path: Path) -> Mapping[str, int]:
        return sizes_of_file(argparse.Namespace(**(vars(args) | {"model": path})))

    cases: list[BenchCase] = []
    errors: dict[str, InputError] = {}
    for name in args.models:
        try:
            case = find(name, sizes_of)
            cases.append(replace(case, inputs=_user_inputs(args, case.path)) if args.input or args.seed else case)
        except InputError as error:
            errors[name] = error
    if not cases:
        raise next(iter(errors.values()))
    return cases, {name: str(error) for name, error in errors.items()}


def _user_inputs(args: argparse.Namespace, path: Path) -> dict[str, Any]:
    declared, source = declared_signature(path)
    return inputs.inputs_for(args, declared, lambda: source).arrays


def _diff(args: argparse.Namespace) -> int:
    comparison = results.compare(*(results.read_report(path) for path in args.diff))
    _write_json(args, results.as_json(asdict(comparison)))
    if not args.json:
        show.show_comparison(comparison, output.console())
    return 0


def _bench(args: argparse.Namespace, cases: Sequence[BenchCase], left_out: Mapping[str, str]) -> int:
    engines, missing = choose_engines(args.against)
    report = measure_all(cases, left_out, _options(args, engines), not args.json)
    _write_json(args, results.to_json(report))
    if not args.json:
        show.show_report(report, missing, output.console())
    is_wrong = any(outcome.engine == results.SUBJECT for _, outcome in results.find_mismatches(report.models))
    return 1 if report.left_out or is_wrong else 0


def choose_engines(names: str) -> tuple[list[Engine], list[str]]:
    """Return the named engines that are installed, and why others are missing."""
    engine_names = [name.strip() for name in names.split(",") if name.strip() not in ("", "none")]
    for name in engine_names:
        if name not in PEERS:
            raise InputError(f"--against {name}: no such engine", hint=f"the engines are {', '.join(PEERS)}, or none")
    chosen = [PEERS[name] for name in dict.fromkeys(engine_names)]
    missing = [f"{engine.name}: {engine.missing}" for engine in chosen if engine.missing is not None]
    return [engine for engine in chosen if engine.missing is None], missing


def measure_all(
    cases: Sequence[BenchCase], missing: Mapping[str, str], options: Options, show_progress: bool
) -> BenchReport:
    """Measure one case after the other, with progress on stderr."""
    console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=not show_progress)
    models, left_out = [], dict(missing)
    for case in cases:
        with console.status(case.name) as status:
            try:
                models.append(measure(case, options, status.update))
            except WeftError as error:
                left_out[case.name] = str(error)
                continue
        console.print(Text(show.format_progress(models[-1]), "dim"))
    settings = {
        "device": options.device,
        "threads": options.threads,
        "precision": options.precision,
        "seconds": options.seconds,
        "peak_flops": options.peak_flops,
    }
    return BenchReport(machine_facts([WEFT, *options.peers]), settings, tuple(models), left_out)


def _options(args: argparse.Namespace, engines: Sequence[Engine]) -> Options:
    device = choose(args.device).name
    threads = args.threads or usable_cores()
    load_options = {"memory_limit": args.memory_limit, "prefer": args.prefer}
    peak = measure_peak(threads).flops if device in CPU_DEVICES else None
    return Options(device, threads, args.seconds, tuple(engines), peak, args.precision, load_options)


def _time_kernels(args: argparse.Namespace, cases: Sequence[BenchCase]) -> int:
    profiles = {}
    for case in cases:
        model = weft.load(str(case.path), **options.load_arguments(args))
        arrays = case.inputs
        if arrays is None:
            items = inputs.make_inputs(model.inputs, model.defaults, (), dict(case.sizes or {}), SEED, None, model)
            arrays = {item.name: item.array for item in items}
        profile = profiles[case.name] = model.profile(arrays)
        if not args.json:
            print_kernels(profile, ops_by_node(model.source.graph), len(profile.kernels), output.console())
    if args.json or args.output:
        kernels = {name: [asdict(kernel) for kernel in profile.kernels] for name, profile in profiles.items()}
        machine = asdict(next(iter(profiles.values())).machine)
        _write_json(args, results.as_json({"peak": machine, "kernels": kernels}))
    return 0


def _write_json(args: argparse.Namespace, text: str) -> None:
    """Write results to stdout, a file, or both, as the options say."""
    if args.json:
        sys.stdout.write(text)
    if args.output is not None:
        write_text(args.output, text)
