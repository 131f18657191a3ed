"""Compare with onnxruntime on the further models: `python -m models.further [NAME...]` (with PYTHONPATH=src:tests).

Each model has a process of its own, which loads it in both, compares the outputs, and runs it in turns: the least time
of many short runs counts, which a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table

import weft
from models.catalog import CatalogModel, load_catalog, random_inputs
from models.survey import session

SECONDS = 0.7  # of runs in each engine
MOST_SECONDS = 120  # of a model in all
FEWEST = 5


def compare(model: CatalogModel, threads: int, device: str) -> dict[str, Any]:
    """Measure one model; return figures by name."""
    inputs = random_inputs(model)
    began = time.perf_counter()
    peer = session(model.file, threads)
    peer_load = time.perf_counter() - began
    expected = dict(zip((spec.name for spec in peer.get_outputs()), peer.run(None, inputs)))
    began = time.perf_counter()
    loaded = weft.load(model.file, device=device, threads=threads)
    load = time.perf_counter() - began
    outputs = loaded.run(inputs)
    figures: dict[str, Any] = {"load_s": load, "peer_load_s": peer_load, "difference": _difference(outputs, expected)}
    names = list(outputs)
    figures["ms"], figures["peer_ms"] = (1e3 * best for best in _take_turns(loaded, peer, inputs, names))
    figures["ratio"] = figures["peer_ms"] / figures["ms"]
    figures["host_steps"] = len(loaded.explain())
    return figures


def _take_turns(loaded: weft.Model, peer: Any, inputs: dict[str, Any], names: list[str]) -> tuple[float, float]:
    best = [float("inf"), float("inf")]
    spent = [0.0, 0.0]
    turns = 0
    while turns < FEWEST or (min(spent) < SECONDS and turns < 20_000):
        for number, run in enumerate((lambda: loaded.run(inputs), lambda: peer.run(names, inputs))):
            for _ in range(3):
                start = time.perf_counter()
                run()
                seconds = time.perf_counter() - start
                best[number] = min(best[number], seconds)
                spent[number] += seconds
        turns += 1
        if sum(spent) > 8 * SECONDS and turns >= 2:
            break
    return best[0], best[1]


def _difference(outputs: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest, relative to the largest magnitude of its output; infinite where shapes or types differ."""
    worst = 0.0
    for name, other in expected.items():
        mine = outputs[name]
        if not isinstance(other, np.ndarray) or other.dtype.kind not in "fiub":
            worst = max(worst, 0.0 if str(mine) == str(other) else float("inf"))
            continue
        if mine.shape != other.shape or mine.dtype != other.dtype:
            return float("inf")
        if not other.size:
            continue
        wide, theirs = mine.astype(np.float64), other.astype(np.float64)
        both = np.isfinite(wide) & np.isfinite(theirs)
        if not np.array_equal(np.isfinite(wide), np.isfinite(theirs)):
            return float("inf")
        scale = float(np.abs(theirs[both]).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(wide - theirs)[both].max(initial=0.0)) / scale)
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="models.further", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", help="a file for the figures; those of other models in it are kept")
    parser.add_argument("--listed", action="store_true", help="the models of models.tsv instead")
    parser.add_argument("--one", action="store_true", help="in this process, and print the figures as JSON")
    args = parser.parse_args(arguments)
    chosen = [model for model in load_catalog(not args.listed) if not args.names or model.name in args.names]
    if args.one:
        print(json.dumps(compare(chosen[0], args.threads, args.device)))
        return 0
    results = {}
    for model in chosen:
        if model.missing is None:
            results[model.name] = _apart(model, args)
            print(f"{model.name}: {format_figures(results[model.name])}", file=sys.stderr, flush=True)
            if args.json:
                _keep(Path(args.json), results)
    Console().print(_table(results))
    return 0


def _apart(model: CatalogModel, args: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "models.further", "--one", "--threads", str(args.threads), "--device", args.device]
    command += ["--listed"] if args.listed else []
    try:
        done = subprocess.run([*command, model.name], capture_output=True, text=True, timeout=MOST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {MOST_SECONDS} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:300]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _keep(file: Path, results: dict[str, Any]) -> None:
    stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(stored | results, indent=1) + "\n", encoding="utf-8")


def format_figures(figures: dict[str, Any]) -> str:
    if "failed" in figures:
        return str(figures["failed"])
    return f"{figures['ms']:.4g} ms, onnxruntime x {figures['ratio']:.2f}, differs by {figures['difference']:.1e}"


def _table(results: dict[str, dict[str, Any]]) -> Table:
    right = {"justify": "right"}
    table = Table("model", Column("ms", **right), Column("onnxruntime x", **right), Column("differs by", **right))
    good = {name: figures for name, figures in results.items() if "failed" not in figures}
    for name, figures in sorted(good.items(), key=lambda item: item[1]["ratio"]):
        table.add_row(name, f"{figures['ms']:.4g}", f"{figures['ratio']:.2f}", f"{figures['difference']:.1e}")
    for name, figures in results.items():
        if "failed" in figures:
            table.add_row(name, "", "", str(figures["failed"]))
    if good:
        mean = float(np.exp(np.mean([np.log(figures["ratio"]) for figures in good.values()])))
        table.caption = f"{len(good)} models, geometric mean {mean:.2f}"
    return table


if __name__ == "__main__":
    sys.exit(main())
