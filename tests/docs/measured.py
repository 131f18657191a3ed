"""Write docs/reference/benchmarks.md and conformance.md from the files in bench/results/.

`WEFT_WRITE_DOCS=1 pytest tests/docs/test_measured.py` writes them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from math import exp, inf, log
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "bench" / "results"
TWO_THREADS, AGAIN, ONE_THREAD = "91245d0-cpu-2", "91245d0-cpu-2-again", "04cf5ad-cpu-1"
CUDA, WEBGPU, WONNX = "cuda-h200", "9e33847-webgpu-h200", "9e33847-webgpu-llvmpipe-2-wonnx"
FIRST = "first-contact-2-cores"
DEVICES = ("reference", "cpu", "webgpu", "cuda")

Models = dict[str, dict[str, Any]]


def read(name: str) -> Any:
    """Read a file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def benchmarks() -> str:
    """Return the page of times and memory."""
    introduction = text(
        "Measure on your machine with `weft bench model.onnx --against onnxruntime`. `weft bench --diff A B` compares",
        "two result files, and `scripts/peak` compares single products with the machine's peak.",
        "The tables on this page",
        "come from the files in `bench/results/`; `bench/README.md` describes the method.",
    )
    return "\n\n".join(["# Benchmarks", introduction, _cpu(), _first(), _cuda(), _webgpu()]) + "\n"


def mean_run_times(engines: Sequence[str]) -> tuple[int, dict[str, float]]:
    """Return how many models all engines ran on two threads, and the geometric mean of each one's time over weft's."""
    models = _measured(TWO_THREADS)
    ratios = {engine: _ratios(models, engine) for engine in engines}
    common = set.intersection(*(set(by_model) for by_model in ratios.values()))
    return len(common), {engine: geometric(ratios[engine][name] for name in common) for engine in engines}


def suite(device: str) -> Any:
    """Read the results of onnx's test suite on a device."""
    return read(f"conformance-{device}")


def _cpu() -> str:
    settings = read(TWO_THREADS)
    machine, versions = settings["machine"], settings["machine"]["versions"]
    two, one = _measured(TWO_THREADS), _measured(ONE_THREAD)
    summary = []
    for threads, models in ((2, two), (1, one)):
        for engine, title in (("onnxruntime", "onnxruntime"), ("openvino", "OpenVINO")):
            ratios = _ratios(models, engine)
            least = min(ratios, key=lambda name: ratios[name])
            mean = f"{geometric(ratios.values()):.2f}×"
            summary.append((f"{threads}", title, f"{len(ratios)}", mean, f"{ratios[least]:.2f}× ({short(least)})"))
    rows = []
    for name in sorted(two, key=lambda name: short(name).lower()):
        weft, peer = two[name]["weft"], two[name]["onnxruntime"]
        ratios = [
            format_speedup(models, name, engine) for models in (two, one) for engine in ("onnxruntime", "openvino")
        ]
        memory = weft["cached"]["memory"] / peer["cached"]["memory"]
        rows.append((short(name), milliseconds(weft["run"]["median"]), *ratios, f"{memory:.2f}"))
    repeated = _ratios(_measured(AGAIN), "onnxruntime")
    again = ", ".join(f"{ratio:.2f} for {short(name)}" for name, ratio in repeated.items())
    peers = ("vs. onnxruntime", "vs. OpenVINO")
    head = ("model", "weft, 2 threads", *peers, *(f"{peer}, 1 thread" for peer in peers))
    return "\n\n".join(
        [
            "## CPU",
            text(
                f"{machine['cores']} cores of an {machine['processor']} with AVX-512, float32, weft in turns with",
                f"onnxruntime {versions['onnxruntime']} and OpenVINO {versions['openvino']}, each in its own process,",
                "on the same inputs and threads. A speedup is the other engine's time divided by weft's;",
                "means are geometric.",
            ),
            table(("threads", "compared with", "models", "mean speedup", "lowest speedup"), summary, right=3),
            table((*head, "memory"), rows, right=6),
            text(
                "Memory is what a load and a run add to the process with a warm cache, divided by the same",
                "in onnxruntime.",
                "A dash means that the engine cannot load the model.",
                f"In a second measurement on 2 threads, the speedups over onnxruntime were {again}.",
                f"The files are `{TWO_THREADS}.json`, `{AGAIN}.json` and `{ONE_THREAD}.json`, from `scripts/bench`.",
            ),
        ]
    )


def _first() -> str:
    seconds = read(FIRST)["seconds"]
    rows = []
    for key, title in (("cold", "empty cache"), ("cached", "filled cache")):
        row = [title]
        for engine in ("weft", "onnxruntime", "openvino"):
            values = [entry[engine][key] for entry in seconds.values() if engine in entry]
            row.append(f"{median(value for value in values if value != inf):.2f} s")
        rows.append(row)
    return "\n\n".join(
        [
            "## First load and run",
            text(
                f"Time of a fresh process that loads a model and runs it once, on 2 threads: medians of {len(seconds)}",
                "models, for OpenVINO of those that it can load. With an empty cache, weft compiles the model.",
            ),
            table(("", "weft", "onnxruntime", "OpenVINO"), rows, right=3),
            f"The file is `{FIRST}.json`, from `scripts/first-contact`.",
        ]
    )


def _cuda() -> str:
    results = read(CUDA)
    columns = ("weft float32", "torch float32 graph", "weft float16 file", "torch float16 graph")
    rows = [
        (name, *(f"{entry[column]:.2f}" if column in entry else "–" for column in columns))
        for name, entry in results["models"].items()
    ]
    contenders = [f"{engine} {kind}" for kind in ("float32", "tf32", "float16") for engine in ("weft", "torch")]
    products = [
        (
            name.removeprefix("product ").replace("x", " × "),
            *(f"{case['times'][key]['TFLOP/s']:.1f}" for key in contenders),
        )
        for size in results["products"].values()
        for name, case in size["cases"].items()
        if all(key in case["times"] for key in contenders)
    ]
    return "\n\n".join(
        [
            "## NVIDIA GPUs",
            text(
                f"{capitalize(results['machine'])}: medians of single runs in ms, tensors on the GPU, torch",
                "with a CUDA",
                "graph. Numbers after a name are batch size and length. For float16, the model's file is in float16.",
            ),
            table(("model", "weft float32", "torch float32", "weft float16", "torch float16"), rows, right=4),
            "Products of two matrices, ten in a row, in TFLOP/s; torch calls cuBLAS:",
            table(("sizes", *contenders), products, right=len(contenders)),
            f"A dash means that torch has no model of that name. The file is `{CUDA}.json`, from `scripts/bench-gpu`.",
        ]
    )


def _webgpu() -> str:
    results = read(WEBGPU)
    by_model: dict[str, list[Any]] = {}
    for entry in results["models"]:
        by_model.setdefault(f"{entry['model']}, {' × '.join(map(str, entry['input']))}", []).append(entry)
    rows = []
    for name, entries in by_model.items():
        weft = median(entry["weft_resident_ms"] for entry in entries)
        torch = [median(entry["torch_ms"][f"{way} tf32=False"] for entry in entries) for way in ("eager", "compile")]
        rows.append((name, *(f"{each:.2f}" for each in (weft, *torch))))
    products = [
        (
            f"{entry['m']} × {entry['n']} × {entry['k']}, {entry['right']}",
            f"{entry['weft_us']:.1f}",
            f"{entry['cublas_us']:.1f}",
        )
        for entry in results["matrix_products"]
    ]
    ratios = _ratios(_measured(WONNX), "wonnx")
    return "\n\n".join(
        [
            "## Other GPUs",
            text(
                f"{results['device']}, float32 without TF32, tensors on the GPU, compared with torch 2.11",
                "through CUDA:",
                "medians of all runs in ms. Measured with an earlier version; the GPU kernels have changed since.",
            ),
            table(("model", "weft, webgpu", "torch eager", "torch.compile"), rows, right=3),
            "Matrix products on the same GPU, in µs; the right matrix is a constant of the model, or an input:",
            table(("sizes", "weft, webgpu", "cuBLAS"), products, right=2),
            text(
                f"On Mesa's software rasterizer llvmpipe, weft is {geometric(ratios.values()):.1f}× faster",
                "than wonnx 0.5.1 on",
                f"the {len(ratios)} models that wonnx can load, and at least {min(ratios.values()):.1f}×",
                "faster on each.",
                f"The files are `{WEBGPU}.json` and `{WONNX}.json`.",
            ),
        ]
    )


def conformance() -> str:
    """Return the page about onnx's test suite."""
    files = {device: suite(device) for device in DEVICES}
    kinds = list(dict.fromkeys(kind for entry in files.values() for kind in entry["kinds"]))
    rows = []
    for device, entry in files.items():
        counts = [format_passed(entry["kinds"].get(kind)) for kind in kinds]
        rows.append(
            (f"`{device}`", entry["machine"], entry["onnx"], *counts, format_passed((entry["passed"], entry["total"])))
        )
    failures: dict[tuple[str, str], list[str]] = {}
    for device, entry in files.items():
        for name, reason in entry["failures"].items():
            failures.setdefault((name, reason), []).append(device)
    failed = [
        (f"`{name}`", reason, "all" if len(devices) == len(files) else ", ".join(devices))
        for (name, reason), devices in failures.items()
    ]
    parts = [
        "# Conformance",
        text(
            "Run the test suite of the `onnx` package on your machine with [`weft conformance`](cli/conformance.md);",
            "`-k relu` selects a part of it, `--device` the device. Each case is a model with inputs",
            "and expected outputs.",
            "The table shows how many cases pass.",
        ),
        table(("device", "machine", "onnx", *kinds, "all"), rows, right=0),
        text(
            "`scripts/test` runs the suite on the reference, the CPU and WebGPU. On compiled devices",
            "it uses `--native`,",
            "with which a case also fails if a step runs on the host that could be a kernel.",
        ),
        "## Failing cases",
        table(("case", "why", "devices"), failed, right=0),
        text(
            "The files are `bench/results/conformance-*.json`: `python -m docs.measured REPORT DEVICE MACHINE` (with",
            "`PYTHONPATH=src:tests`) writes one from a report of `weft conformance -o REPORT`.",
        ),
    ]
    return "\n\n".join(parts) + "\n"


def summarize(report: Mapping[str, Any], machine: str, reasons: Mapping[str, str]) -> dict[str, Any]:
    """Reduce a report of `weft conformance -o` to counts and the reasons of failures."""
    kinds: dict[str, list[int]] = {}
    for case in report["cases"]:
        counts = kinds.setdefault(case["kind"], [0, 0])
        counts[0] += case["status"] == "passed"
        counts[1] += 1
    failures = {
        case["name"]: reasons.get(case["name"], case["reason"])
        for case in report["cases"]
        if case["status"] != "passed"
    }
    return {
        "device": report["device"],
        "machine": machine,
        "onnx": report["onnx_version"],
        "passed": report["passed"],
        "total": report["total"],
        "kinds": kinds,
        "failures": failures,
    }


def failure_reasons(device: str) -> dict[str, str]:
    """Read the reasons of known failures, by the names of cases."""
    name = "known_failures" + ("" if device == "reference" else f"_{device}")
    lines = (ROOT / "tests" / "conformance" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    parts = (line.partition("  # ") for line in lines if not line.startswith("#"))
    return {case.strip(): reason.strip() for case, _, reason in parts}


def _measured(name: str) -> Models:
    """Read the measurements of a file by model and engine."""
    return {entry["model"]: {each["engine"]: each for each in entry["measurements"]} for entry in read(name)["models"]}


def _ratios(models: Models, engine: str) -> dict[str, float]:
    return {
        name: measurements[engine]["run"]["median"] / measurements["weft"]["run"]["median"]
        for name, measurements in models.items()
        if engine in measurements
    }


def format_speedup(models: Models, name: str, engine: str) -> str:
    """Format weft's speedup over an engine; a dash if the engine does not run the model."""
    ratio = _ratios({name: models[name]}, engine).get(name) if name in models else None
    return "–" if ratio is None else f"{ratio:.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: int) -> str:
    """Format a Markdown table whose last `right` columns are right-aligned."""
    rule = ["---"] * (len(head) - right) + ["---:"] * right
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def geometric(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def text(*parts: str) -> str:
    """Join the parts of a paragraph."""
    return " ".join(parts)


def format_passed(counts: Sequence[int] | None) -> str:
    """Format passed cases and their total; a dash if there are none."""
    return "–" if counts is None else f"{counts[0]} of {counts[1]}"


def short(name: str) -> str:
    """Return a model's name without that of its package."""
    return name.rpartition("__")[2]


def milliseconds(seconds: float) -> str:
    """Format a time in ms or µs."""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def capitalize(text: str) -> str:
    """Capitalize the first letter."""
    return text[0].upper() + text[1:]


def main() -> None:
    import sys

    path, device, machine = sys.argv[1:]
    summary = summarize(json.loads(Path(path).read_text(encoding="utf-8")), machine, failure_reasons(device))
    target = RESULTS / f"conformance-{device}.json"
    target.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
