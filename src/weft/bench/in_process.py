"""Time a loaded model in turns with other engines, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from weft.bench.engines import PEERS, WEFT, Setup
from weft.bench.rounds import Block, Spread, summarize_times, take_turns, time_block
from weft.errors import ExecutionError, InputError, WeftError, short_repr
from weft.runtime.model import Model
from weft.threads import usable_cores


def time_engines(model: Model, inputs: Mapping[str, Any], seconds: float, against: Sequence[str]) -> dict[str, Spread]:
    """Return the times of each engine's runs, weft's first; an engine that fails raises an error."""
    for name in against:
        engine = PEERS.get(name)
        if engine is None:
            problem = f"there is no engine {short_repr(name)} to compare with"
            raise InputError(problem, file=model.file, hint=f"choose one of {', '.join(PEERS)}")
        if engine.missing is not None:
            raise InputError(engine.missing, file=model.file)
    feeds = dict(inputs)
    blocks: dict[str, Block] = {WEFT.name: partial(time_block, partial(model.run, feeds))}
    model.run(feeds)  # raises errors about the inputs
    with ExitStack() as stack:
        if against:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="weft-bench-"))) / "model.onnx"
            model.save(path)
            setup = Setup(str(path), model.device, model.pool.options.threads or usable_cores())
            blocks.update((name, _prepare_block(name, setup, feeds, model.file)) for name in dict.fromkeys(against))
        return {name: summarize_times(times) for name, times in take_turns(blocks, seconds).items()}


def _prepare_block(name: str, setup: Setup, inputs: Mapping[str, Any], file: str) -> Block:
    """Load another engine, run it once, and return its block of timed runs."""
    try:
        loaded = PEERS[name].load(setup)
        prepared = loaded.prepare(inputs)
        loaded.run(prepared)
    except WeftError:
        raise
    except Exception as error:  # engines raise any kind
        problem = f"{name} does not run this model: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
        raise ExecutionError(problem, file=file) from error
    return partial(time_block, partial(loaded.run, prepared))
