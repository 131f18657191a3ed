"""What is accepted and has no meaning here: said once in a process, to whoever listens to the logger `weft.compat`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from weft.compat.onnxruntime.options import SessionOptions

_log = logging.getLogger("weft.compat")
_said: set[str] = set()

_WITHOUT_MEANING = {
    "enable_cpu_mem_arena": "weft plans a run's memory as a whole",
    "enable_mem_pattern": "weft plans a run's memory as a whole",
    "enable_mem_reuse": "weft plans a run's memory as a whole",
    "execution_mode": "independent kernels share the threads anyway",
    "execution_order": "weft orders kernels by the memory that they take",
    "graph_optimization_level": "weft has one form of a model, with the same results to the last bit wherever it runs",
    "inter_op_num_threads": "all threads work on all kernels: intra_op_num_threads is their number",
    "use_deterministic_compute": "results are the same for any number of threads",
    "use_per_session_threads": "threads are shared by sessions",
}


def say(text: str) -> None:
    """Say it, unless it was said."""
    if text not in _said:
        _said.add(text)
        _log.info(text)


def say_unused(options: SessionOptions, keywords: Mapping[str, Any]) -> None:
    """What of a session's options has no meaning."""
    for name, reason in _WITHOUT_MEANING.items():
        if name in options.fields:
            say(f"SessionOptions.{name} changes nothing: {reason}")
    for key in options.entries:
        say(f"the session's entry {key!r} changes nothing, unless it is about external data or fallbacks")
    if keywords.get("disabled_optimizers"):
        say("InferenceSession's disabled_optimizers change nothing: weft has optimisations of its own")
