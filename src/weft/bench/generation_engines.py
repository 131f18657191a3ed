"""How each engine generates text: it computes a batch of prompts and a number of tokens after them, greedily.

An engine runs in a worker process (`worker.py`). End tokens do not end answers, so that all engines generate the same
number of tokens, and weft does not speculate, since random prompts would flatter or hurt it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.bench.engines import Engine, Setup
from weft.cli.process import peak_memory
from weft.errors import InputError
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.generation.sequence import TokenEvent

Tokens = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class GenerationRun:
    """The times of one batch: until all have their first token, and of the tokens after it."""

    first_seconds: float
    decode_seconds: float
    decode_tokens: int
    tokens: tuple[tuple[int, ...], ...]


class GenerationServer:
    """Keeps a model of one engine; public methods are the commands."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._run: Callable[[Tokens, int], GenerationRun] | None = None

    def load(self, setup: Setup) -> float:
        """Load the model and return the seconds."""
        for module in self._engine.modules:
            import_module(module)
        start = time.perf_counter()
        self._run = self._engine.load(setup)  # type: ignore[assignment]
        return time.perf_counter() - start

    def version(self) -> str:
        return self._engine.version

    def generate(self, prompts: Tokens, count: int) -> GenerationRun:
        """Generate `count` tokens after each prompt."""
        if self._run is None:
            raise InputError("no model is loaded")
        return self._run(prompts, count)

    def memory(self) -> int | None:
        """Return the peak memory of the process."""
        return peak_memory()


def _load_weft(setup: Setup) -> Any:
    from weft.generation import generator as generator_module
    from weft.generation.answers import AnswerStream

    class TimedStream(AnswerStream):
        """Records the time of each token, on the thread that generates them."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.times: list[float] = []

        def put(self, event: TokenEvent) -> bool:
            self.times.append(time.perf_counter())
            return super().put(event)

    vars(generator_module)["AnswerStream"] = TimedStream
    options = dict(setup.load_options)
    generator = generator_module.Generator(setup.path, setup.device, threads=setup.threads, speculate=False, **options)
    generator.folder = replace(generator.folder, end_tokens=())

    def run(prompts: Tokens, count: int) -> GenerationRun:
        start = time.perf_counter()
        streams: list[Any] = [generator.stream(prompt, max_new_tokens=count, temperature=0) for prompt in prompts]
        tokens = tuple(stream.answer().tokens for stream in streams)
        first = max(stream.times[0] for stream in streams)
        later = [moment for stream in streams for moment in stream.times if moment > first]
        return GenerationRun(first - start, max(later, default=first) - first, len(later), tokens)

    return run


def _load_genai(setup: Setup) -> Any:
    library = import_module("onnxruntime_genai")
    config = library.Config(setup.path)
    session = {"intra_op_num_threads": setup.threads, "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    model = library.Model(config)
    numpy = import_module("numpy")

    def run(prompts: Tokens, count: int) -> GenerationRun:
        length = len(prompts[0]) + count
        params = library.GeneratorParams(model)
        params.set_search_options(batch_size=len(prompts), max_length=length, min_length=length, do_sample=False)
        start = time.perf_counter()
        generator = library.Generator(model, params)
        generator.append_tokens(numpy.array(prompts, numpy.int32).reshape(-1))
        generator.generate_next_token()
        generator.get_next_tokens()
        first = time.perf_counter()
        while not generator.is_done():
            generator.generate_next_token()
            generator.get_next_tokens()
        end = time.perf_counter()
        answers = [generator.get_sequence(row)[len(prompts[0]) :].tolist() for row in range(len(prompts))]
        tokens = tuple(map(tuple, answers))
        return GenerationRun(first - start, end - first, sum(map(len, tokens)) - len(prompts), tokens)

    return run


WEFT = Engine("weft", ("weft",), ("weft.generation.generator",), _load_weft, {})
GENAI = Engine("onnxruntime-genai", ("onnxruntime-genai",), ("onnxruntime_genai",), _load_genai, {})
GENERATION_ENGINES = {engine.name: engine for engine in (WEFT, GENAI)}
