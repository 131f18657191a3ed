"""Threads, forks, process exits and signals at bad moments: the bits of sequential runs, no crash, no hang.

A case is the life of a process of its own (attack/scenarios.py). What its models must give is computed here, by one
thread, and compared with onnxruntime.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
from attack.scenarios import BATCHES, MODELS, SCENARIOS, digest, feed, layers
from attack.verdict import Payload, Verdict, right, wrong

import weft

SECONDS = 150.0
LIMIT = 90.0  # for a scenario
SHARE = 11  # each scenario once
THREADS = (2, 1, 4, 64)
DROPPED_INTERRUPT = re.compile(r"Exception ignored in: .*\n(Traceback .*\n(  .*\n)*)?KeyboardInterrupt: *\n")
"""Python drops a KeyboardInterrupt in a finalizer; the scenario sends another one."""
NOISE = ("terminate called", "Fatal Python error", "Exception ignored")
ONLY_GPU, ONLY_CPU = ("forks_after_gpu",), ("forks_while_loading", "forks_while_running")


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    left_out = ONLY_GPU if device == "cpu" else ONLY_CPU
    for turn in range(1 << 30):
        seed = int(random.integers(1 << 20))  # the same for a turn: what its models must give is computed once
        for place, scenario in enumerate(SCENARIOS):
            threads = THREADS[(turn + place) % len(THREADS)]
            if scenario not in left_out:
                name = f"{scenario}, {threads} threads, seed {seed}"
                yield {"name": name, "scenario": scenario, "threads": threads, "seed": seed}


def attack(payload: Payload, device: str) -> Verdict:
    expected = _expected(payload["seed"], device)
    with TemporaryDirectory() as folder:
        environment = {name: text for name, text in os.environ.items() if name != "XDG_RUNTIME_DIR"}
        process = subprocess.Popen(
            [sys.executable, "-m", "attack.scenarios", json.dumps({**payload, "device": device, "expected": expected})],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, "WEFT_CACHE": folder},
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # forked children would keep the pipe open
            output, _ = process.communicate()
            return wrong(f"it did not end within {LIMIT:g} s: {output[-1000:]}")
    output = DROPPED_INTERRUPT.sub("", output)
    lines = output.strip().splitlines()
    if process.returncode or not lines or lines[-1] != "held" or any(noise in output for noise in NOISE):
        return wrong(f"status {process.returncode}: {output[-4000:]}")
    return right()


@cache
def _expected(seed: int, device: str) -> dict[str, str]:
    """Return digests of all results of sequential runs, which must agree with onnxruntime."""
    digests = {}
    for number in range(MODELS):
        source = layers(seed + number)
        model = weft.load(source, device=device, threads=1)
        judge = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
        for batch in BATCHES:
            inputs = {"x": feed(seed + number, batch)}
            result = model.run(inputs)["y"]
            np.testing.assert_allclose(result, judge.run(None, inputs)[0], rtol=1e-4, atol=1e-6)
            digests[f"{number} {batch}"] = digest(result)
    return digests
