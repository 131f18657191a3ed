"""The environment variables that weft reads, in one table. Arguments override them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable: its name, its possible values, and their meaning."""

    name: str
    value: str
    meaning: str


DEVICE = Variable("WEFT_DEVICE", "a device, or auto", 'what device="auto" stands for')
CHAIN = Variable("WEFT_DEVICE_CHAIN", "devices, with commas", "the same for a chain: the first that works is used")
ALLOWED = Variable("WEFT_DEVICES", "devices, with commas", 'what "auto" may choose from; software GPUs too, if named')
DENIED = Variable("WEFT_DENY_DEVICES", "devices, with commas", 'what "auto" may not choose')
PICK = Variable("WEFT_PICK", "cost, benchmark or order", 'how "auto" picks one of several')
CACHE = Variable(
    "WEFT_CACHE", "a folder or empty", "where weft keeps compiled models, code and measurements; empty: nowhere"
)
KEYS = Variable(
    "WEFT_KEYS",
    "a folder or empty",
    "where the key that signs compiled programs is stored (docs/guides/ahead.md); empty: nowhere",
)
VERIFY = Variable("WEFT_VERIFY", "1", "check kernels and memory plans while compiling, as weft's own tests do")

CUDA_LIBRARY = Variable(
    "WEFT_CUDA_LIBRARY", "a file", "the library of NVIDIA's driver, where it is not found by its name"
)
COMPAT = Variable(
    "WEFT_COMPAT",
    "onnxruntime, onnxruntime_genai or both",
    "import onnxruntime means weft, in this process and those it starts",
)
PROGRESS = Variable("WEFT_PROGRESS", "0", "show no progress of long loads, on terminals and in notebooks")
LOG = Variable("WEFT_LOG", "debug, info or warning", "write what weft does to standard error, from this level on")
API_KEY = Variable("WEFT_API_KEY", "a text", "the key that clients of weft serve must send, unless --api-key sets one")
VARIABLES = (DEVICE, CHAIN, ALLOWED, DENIED, PICK, CACHE, KEYS, VERIFY, CUDA_LIBRARY, COMPAT, PROGRESS, LOG, API_KEY)


def listed(variable: Variable, environment: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """Return the names that a variable lists; None if it is unset or empty."""
    text = text_of(variable, environment)
    return None if text is None else tuple(name for part in text.split(",") if (name := part.strip()))


def text_of(variable: Variable, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the value of a variable; None if it is unset or empty."""
    text = (os.environ if environment is None else environment).get(variable.name, "").strip()
    return text or None
