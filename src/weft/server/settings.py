"""The settings of a server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from weft.errors import InputError, UnknownOptionError, short_repr
from weft.runtime.memory import parse_bytes
from weft.runtime.options import LoadOptions

MAX_BODY = 256 << 20
GENERATOR_OPTIONS = ("max_length", "variant", "speculate", "draft")  # of `weft.Generator`, for language models


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server besides its models.

    batching: whether rows of several requests run as one batch.
    max_batch: the most rows of a run; None measures which size is best when a model is loaded.
    max_wait: seconds that a request waits at most for others, while there are others.
    max_queue: the most requests of a model that wait; more are refused with status 429.
    timeout: seconds after which a request is refused with status 504, unless it names its own; None never does.
    memory_limit: bytes of all models and runs together; None is most of the memory that is available at the start.
    max_body: bytes of a request.
    body_timeout: seconds without a byte after which an unfinished request is closed.
    sequence_idle: seconds after which the state of a sequence is dropped if no request continues it.
    sequence_length: the most elements of states that grow, such as the keys and values of a decoder.
    poll: seconds between looks for changed files; 0 never looks.
    api_key: what requests must carry as a bearer token; None requires none.
    allow_loading: whether clients may load and unload models.
    allow_origins: the origins of pages in browsers that may use the server besides its own, "*" for all.
    access_log: whether each request is logged.
    options: of `weft.load` and `weft.Generator`, for all models.
    """

    batching: bool = True
    max_batch: int | None = None
    max_wait: float = 0.002
    max_queue: int = 1000
    timeout: float | None = None
    memory_limit: int | None = None
    max_body: int = MAX_BODY
    body_timeout: float = 30.0
    sequence_idle: float = 600.0
    sequence_length: int = 2048
    poll: float = 2.0
    api_key: str | None = field(default=None, repr=False)
    allow_loading: bool = True
    allow_origins: tuple[str, ...] = ()
    access_log: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (
            ("max_batch", 1),
            ("max_queue", 1),
            ("sequence_length", 1),
            ("memory_limit", 1),
            ("max_body", 1),
        ):
            count = getattr(self, name)
            if name in ("max_batch", "memory_limit") and count is None:
                continue
            if not isinstance(count, int) or isinstance(count, bool) or count < least:
                raise InputError(f"{name} must be a whole number from {least} on, not {short_repr(count)}")
        for name in ("max_wait", "timeout", "body_timeout", "sequence_idle", "poll"):
            seconds = getattr(self, name)
            if name == "timeout" and seconds is None:
                continue
            is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
            if not is_number or not math.isfinite(seconds) or seconds < 0:
                raise InputError(f"{name} must be a number of seconds, not {short_repr(seconds)}")
        if self.api_key is not None and (not isinstance(self.api_key, str) or not self.api_key):
            raise InputError("api_key must be a text that is not empty")

    @property
    def load_options(self) -> dict[str, Any]:
        """The options of `weft.load`."""
        return {name: content for name, content in self.options.items() if name not in GENERATOR_OPTIONS}

    @property
    def generator_options(self) -> dict[str, Any]:
        """The options of `weft.Generator`."""
        limits = {"max_batch": self.max_batch, "memory_limit": self.memory_limit}
        return {**self.options, **{name: limit for name, limit in limits.items() if limit is not None}}


def make_settings(keywords: Mapping[str, Any]) -> ServerSettings:
    """Make settings from keyword arguments; those that are not of the server are options of `weft.load`."""
    own = {each.name for each in fields(ServerSettings)} - {"options"}
    settings = {name: content for name, content in keywords.items() if name in own}
    options = {name: content for name, content in keywords.items() if name not in own}
    if settings.get("memory_limit") is not None:
        settings["memory_limit"] = parse_bytes(settings["memory_limit"])
    load_options = {each.name for each in fields(LoadOptions)}
    for name in options:
        if name not in load_options and name not in GENERATOR_OPTIONS:
            hint = f"settings are {', '.join(sorted(own))}, and the options of weft.load"
            raise UnknownOptionError(f"there is no setting {name!r}", hint=hint)
    return ServerSettings(**settings, options=options)
