"""Regions of real models, changed in one to four places: weft must mean what onnxruntime means, judged by float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attack.drawn import packed
from attack.mutate import mutated
from attack.reduce import smaller_models
from attack.regions import corpus, from_json
from attack.trial import attacked
from attack.verdict import Payload, Verdict

SECONDS = 60
SHARE = 16


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    regions = corpus()
    while True:
        case = from_json(regions[int(random.integers(len(regions)))])
        done = mutated(case, random, int(random.integers(1, 5)))
        yield {"name": f"{case.name} {', '.join(done)}", "model": packed(case.model), "runs": [case.feeds]}


def attack(payload: Payload, device: str) -> Verdict:
    return attacked(payload, device)


def smaller(payload: Payload) -> Iterator[Payload]:
    return smaller_models(payload)
