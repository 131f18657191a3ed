"""One version of a model that is loaded: it answers requests with arrays by name, and counts them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.errors import RunTimeoutError, WeftError
from weft.runtime.batch_axes import BatchAxes, find_batch_axes
from weft.runtime.ragged_axes import find_ragged_axes
from weft.server.batching import Batcher, BatchOptions
from weft.server.choose_batch import choose_batch
from weft.server.memory import MemoryBudget
from weft.server.sequences import Sequences, SequenceStep
from weft.server.settings import ServerSettings
from weft.server.statistics import ModelStatistics
from weft.server.v2.datatypes import NUMPY_TYPES
from weft.server.v2.interface import ModelInterface, TensorInfo, describe_interface

if TYPE_CHECKING:
    from weft.generation.generator import Generator
    from weft.runtime.model import Model
    from weft.server.embedder import Embedder

Arrays = Mapping[str, Any]
TEXT_INTERFACE = ModelInterface(
    {
        "text_input": TensorInfo("text_input", "BYTES", NUMPY_TYPES["BYTES"], (1,)),
        "stream": TensorInfo("stream", "BOOL", NUMPY_TYPES["BOOL"], (1,), is_optional=True),
        "sampling_parameters": TensorInfo("sampling_parameters", "BYTES", NUMPY_TYPES["BYTES"], (1,), is_optional=True),
        "exclude_input_in_output": TensorInfo(
            "exclude_input_in_output", "BOOL", NUMPY_TYPES["BOOL"], (1,), is_optional=True
        ),
    },
    {"text_output": TensorInfo("text_output", "BYTES", NUMPY_TYPES["BYTES"], (None,))},
)
"""What the inference protocol sees of a language model."""


class ServedModel:
    """A model, a model of embeddings, or a generator, with its own queue and counters.

    `memory` is what it reserves of the server's budget while it is loaded.
    """

    def __init__(self, name: str, version: str, platform: str, interface: ModelInterface, memory: int) -> None:
        self.name = name
        self.version = version
        self.platform = platform
        self.interface = interface
        self.memory = memory
        self.created = int(time.time())
        self.statistics = ModelStatistics()
        self.requests = 0  # that are being answered
        self.generator: Generator | None = None
        self.embedder: Embedder | None = None
        self.batcher: Batcher | None = None
        self.sequences: Sequences | None = None
        self.external_files: Sequence[str] = ()  # of weights, beside the model's own file
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def kind(self) -> str:
        """What the model makes: "generator", "embedder" or "model"."""
        return "generator" if self.generator is not None else "embedder" if self.embedder is not None else "model"

    @property
    def device(self) -> str:
        """The device that it runs on."""
        if self.generator is not None:
            return self.generator.device
        assert self.batcher is not None
        return self.batcher.model.device

    @property
    def queue_length(self) -> int:
        """The requests that wait."""
        if self.generator is not None:
            return self.generator.statistics.waiting
        assert self.batcher is not None
        return self.batcher.pending

    @property
    def rows(self) -> int:
        """The most rows of a run, or the most sequences of a generator."""
        if self.generator is not None:
            return self.generator.max_batch
        assert self.batcher is not None
        return self.batcher.options.largest

    @property
    def max_batch(self) -> int:
        """The most rows of a run; 0 if clients should not add a dim for the batch."""
        if self.batcher is None or not self.batcher.axes.can_join or not self.batcher.axes.leads_all:
            return 0
        return self.batcher.options.largest

    async def infer(
        self,
        arrays: Arrays,
        outputs: tuple[str, ...] | None,
        timeout: float | None = None,
        sequence: SequenceStep | None = None,
    ) -> dict[str, Any]:
        """Answer a request whose arrays fit the interface."""
        begin = time.perf_counter_ns()
        self.enter()
        queue = 0
        try:
            self.interface.check_complete(arrays, is_sequence=sequence is not None)
            if sequence is not None:
                assert self.sequences is not None
                results: dict[str, Any] = await _limit(self.sequences.run(sequence, arrays, outputs), timeout)
            else:
                assert self.batcher is not None
                results, queue = await self.batcher.run(arrays, outputs, timeout)
        except asyncio.CancelledError:
            self.statistics.cancel.add(time.perf_counter_ns() - begin)
            raise
        except Exception:
            self.statistics.fail.add(time.perf_counter_ns() - begin)
            raise
        else:
            self.statistics.add_success(time.perf_counter_ns() - begin, queue)
            return results
        finally:
            self.leave()

    def use_statistics(self, statistics: ModelStatistics) -> None:
        """Count on, where a model that this one replaces has stopped."""
        self.statistics = statistics
        if self.batcher is not None:
            self.batcher.statistics = statistics

    def begin_request(self) -> Callable[[int, int], None]:
        """Count a request for text; the result ends it, with the numbers of tokens of its prompts and answers."""
        begin = time.perf_counter_ns()
        self.enter()

        def end(prompt_tokens: int, answer_tokens: int) -> None:
            counts = self.statistics
            counts.tokens_in += prompt_tokens
            counts.tokens_out += answer_tokens
            if prompt_tokens:
                counts.inferences += 1
                counts.last_inference = time.time_ns() // 1_000_000
                counts.add_success(time.perf_counter_ns() - begin, 0)
            else:  # it was refused before it started
                counts.fail.add(time.perf_counter_ns() - begin)
            self.leave()

        return end

    def enter(self) -> None:
        """Count a request; the model is not closed before it leaves."""
        self.requests += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count the end of a request."""
        self.requests -= 1
        if not self.requests:
            self._idle.set()

    async def close(self, grace: float | None = None) -> None:
        """Wait until all requests are answered, at most `grace` seconds, then free what the model holds."""
        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace)
        if self.sequences is not None:
            self.sequences.close()
        if self.generator is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.generator.close)


def serve_model(
    name: str,
    version: str,
    model: Model,
    settings: ServerSettings,
    budget: MemoryBudget,
    omitted: Sequence[str] = (),
) -> ServedModel:
    """Find how requests of a model are batched, warm it up, and return it as served. This runs for seconds.

    omitted: further outputs of its file, which it was loaded without.
    """
    axes = find_batch_axes(model) if settings.batching else BatchAxes({}, {}, "batching is switched off")
    interface = describe_interface(model.inputs, model.defaults, model.outputs, model.file, omitted)
    weights = model.memory().weights
    room = budget.limit - budget.reserved - weights
    choice = choose_batch(model, axes, settings.max_batch, room // 2)
    served = ServedModel(name, version, "onnx", interface, weights)
    served.external_files = _list_external_files(model)
    options = BatchOptions(
        largest=choice.rows, max_wait=settings.max_wait, max_queue=settings.max_queue, run_seconds=choice.seconds
    )
    ragged = find_ragged_axes(model, axes) if axes.can_join else None
    served.batcher = Batcher(model, axes, ragged, options, budget, served.statistics)
    sequences = Sequences(model, settings.sequence_length, settings.sequence_idle, budget)
    if sequences.pairs:
        served.sequences = sequences
        served.interface = replace(interface, state_inputs=frozenset(sequences.pairs))
    return served


def serve_generator(name: str, version: str, generator: Generator) -> ServedModel:
    """Return a generator as served."""
    memory = generator.memory()
    served = ServedModel(name, version, "onnx_generator", TEXT_INTERFACE, memory.peak)
    served.generator = generator
    return served


def _list_external_files(model: Model) -> Sequence[str]:
    try:
        return model.pool.files.locations()
    except WeftError:  # of a compiled file, which has its weights inside
        return ()


async def _limit(run: Any, timeout: float | None) -> Any:
    if timeout is None:
        return await run
    try:
        return await asyncio.wait_for(run, timeout)
    except (TimeoutError, asyncio.TimeoutError):
        raise RunTimeoutError(f"the request was not answered within {timeout:g} s") from None
