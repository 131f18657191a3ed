"""`Sequence`: one answer while it is generated: its tokens, its blocks of the cache, and what follows from them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from weft.generation.blocks import ROOT
from weft.generation.options import GenerationOptions
from weft.generation.sampler import SampledRow


class FinishReason(str, Enum):
    """Why an answer ended."""

    STOP = "stop"  # an end token, a stop string, or the end of a grammar
    LENGTH = "length"  # max_new_tokens, or the context is full
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token of an answer, or its end.

    token: the token; None for the end alone.
    logprob, top: log probabilities of the token, and of the likeliest tokens, if they were asked for.
    finish: why the answer ended after this event; None while it goes on.
    error: what ended it, if that was an error.
    """

    token: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finish: FinishReason | None = None
    error: BaseException | None = None


Listener = Callable[[TokenEvent], bool]  # returns True to stop after this token


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its answer.

    tokens: prompt and answer.
    computed: the number of tokens whose keys and values are in the cache.
    blocks, nodes: of the cache, and the nodes of those that are published.
    listen: receives every event, on the engine's thread; True stops the answer.
    """

    tokens: list[int]
    prompt_length: int
    options: GenerationOptions
    seed: int
    limit: int  # the most tokens of prompt and answer
    end_tokens: frozenset[int]
    listen: Listener
    constraint: Any = None
    number: int = 0  # of arrival
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    node: int = ROOT
    published: int = 0  # blocks
    cached: int = 0  # tokens of the prompt whose blocks were found
    cancelled: bool = False
    finish: FinishReason | None = None
    deadline: float | None = None
    source: Any = None  # of encoder–decoders: what the encoder reads
    row: SampledRow = field(init=False)

    def __post_init__(self) -> None:
        self.row = SampledRow(self.options, self.seed, self.tokens, self.prompt_length)
        if self.options.timeout is not None:
            self.deadline = time.monotonic() + self.options.timeout

    @property
    def remaining(self) -> int:
        """The number of tokens to compute before the next one can be chosen."""
        return len(self.tokens) - self.computed

    @property
    def rank(self) -> tuple[int, int]:
        """The order in which sequences are served: by priority, then by arrival."""
        return -self.options.priority, self.number
