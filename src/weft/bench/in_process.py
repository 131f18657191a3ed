"""A model that is loaded here, timed in turns with other engines in this very process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from weft.bench.engines import PEERS, WEFT, Setup
from weft.bench.rounds import Block, Spread, spread_of, take_turns, time_block
from weft.errors import ExecutionError, InputError, WeftError, short_repr
from weft.runtime.model import Model
from weft.threads import usable_cores


def times_in_turn(model: Model, inputs: Mapping[str, Any], seconds: float, against: Sequence[str]) -> dict[str, Spread]:
    """The times of runs of each engine, weft's first; an engine that fails is an error that says why."""
    for name in against:
        engine = PEERS.get(name)
        if engine is None:
            problem = f"there is no engine {short_repr(name)} to compare with"
            raise InputError(problem, file=model.file, hint=f"weft knows {', '.join(PEERS)}")
        if engine.missing is not None:
            raise InputError(engine.missing, file=model.file)
    given = dict(inputs)
    blocks: dict[str, Block] = {WEFT.name: partial(time_block, partial(model.run, given))}
    model.run(given)  # what is wrong with the inputs shows here
    with ExitStack() as stack:
        if against:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="weft-bench-"))) / "model.onnx"
            model.save(path)
            setup = Setup(str(path), model.device, model.pool.options.threads or usable_cores())
            blocks.update((name, _block(name, setup, given, model.file)) for name in dict.fromkeys(against))
        return {name: spread_of(times) for name, times in take_turns(blocks, seconds).items()}


def _block(name: str, setup: Setup, inputs: Mapping[str, Any], file: str) -> Block:
    """Runs of another engine, which has run once."""
    try:
        loaded = PEERS[name].load(setup)
        prepared = loaded.prepare(inputs)
        loaded.run(prepared)
    except WeftError:
        raise
    except Exception as error:  # whatever an engine of someone else's raises
        problem = f"{name} does not run this model: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
        raise ExecutionError(problem, file=file) from error
    return partial(time_block, partial(loaded.run, prepared))
