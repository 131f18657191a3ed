"""Options and calls that are accepted without effect. The logger `weft.compat` reports each once per process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from weft.compat.onnxruntime.options import SessionOptions

_log = logging.getLogger("weft.compat")
_logged: set[str] = set()

_MEMORY_PLAN = "weft plans the memory of a whole run"
_IGNORED = {
    "enable_cpu_mem_arena": _MEMORY_PLAN,
    "enable_mem_pattern": _MEMORY_PLAN,
    "enable_mem_reuse": _MEMORY_PLAN,
    "execution_mode": "independent kernels share the threads anyway",
    "execution_order": "weft orders kernels by the memory that they need",
    "graph_optimization_level": "weft has one optimization level",
    "inter_op_num_threads": "all threads work on all kernels; set intra_op_num_threads",
    "use_deterministic_compute": "results are the same for any number of threads",
    "use_per_session_threads": "sessions share threads",
}


def log_once(text: str) -> None:
    """Log a message unless this process has logged it before."""
    if text not in _logged:
        _logged.add(text)
        _log.info(text)


def log_ignored_options(options: SessionOptions, keywords: Mapping[str, Any]) -> None:
    """Log the options of a session that have no effect."""
    for name, reason in _IGNORED.items():
        if name in options.fields:
            log_once(f"SessionOptions.{name} has no effect: {reason}")
    for key in options.entries:
        log_once(f"the session config entry {key!r} has no effect, unless it is about external data or fallbacks")
    if keywords.get("disabled_optimizers"):
        log_once("InferenceSession's disabled_optimizers has no effect: weft's optimizations are different")
