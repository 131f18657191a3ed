"""A family that does what attacks look for: it crashes, hangs, and raises what it should not."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator

import numpy as np
from attack.verdict import Payload, Verdict, refused, right, wrong

from weft.errors import InputError, InternalError

SIZE = 64


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    while True:
        yield {"name": "number", "do": "right", "number": int(random.integers(100))}


def attack(payload: Payload, device: str) -> Verdict:
    match payload["do"]:
        case "crash":
            ctypes.string_at(8)
        case "hang":
            time.sleep(1000)
        case "foreign":
            raise KeyError("k")
        case "internal":
            raise InternalError("broken")
        case "input":
            raise InputError("bad")
        case "leave":
            raise SystemExit(3)
        case "memory":
            np.ones(1 << 40, np.uint8)
        case "print":
            print("not an answer")
        case "refuse":
            return refused("since")
        case "wrong":
            return wrong("another value") if payload["size"] > 5 else right()
    return right()


def smaller(payload: Payload) -> Iterator[Payload]:
    if payload.get("size", 0) > 0:
        yield {**payload, "size": payload["size"] // 2}
        yield {**payload, "size": payload["size"] - 1}
