"""Random models out of realistic pieces, run at several sizes: weft must mean what onnxruntime means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from attack.compose import compose_model
from attack.drawn import Draw, packed
from attack.mutate import mutated
from attack.reduce import smaller_models
from attack.trial import attacked
from attack.verdict import Payload, Verdict

SECONDS = 60
SHARE = 16
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17)


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    while True:
        case, declared = compose_model(random, int(random.integers(1, 9)))
        done = mutated(case, random, int(random.integers(1, 3))) if random.random() < 0.3 else []
        runs = [case.feeds]
        if any(isinstance(size, str) for shape in declared.values() for size in shape):
            runs += [_resized(case.feeds, declared, random) for _ in range(int(random.integers(1, 3)))]
            runs += runs[:1] if random.random() < 0.3 else []
        yield {"name": f"{case.name} {', '.join(done)}".strip(), "model": packed(case.model), "runs": runs}


def _resized(
    feeds: Mapping[str, Draw], declared: Mapping[str, Sequence[int | str]], random: np.random.Generator
) -> dict[str, Draw]:
    """The same inputs with other sizes for the symbolic ones."""
    sizes: dict[str, int] = {}
    resized_feeds = dict(feeds)
    for name, shape in declared.items():
        other = [
            sizes.setdefault(size, int(SIZES[int(random.integers(len(SIZES)))])) if isinstance(size, str) else size
            for size in shape
        ]
        if name in resized_feeds and len(other) == len(resized_feeds[name]["shape"]):
            resized_feeds[name] = resized_feeds[name] | {"shape": other}
    return resized_feeds


def attack(payload: Payload, device: str) -> Verdict:
    return attacked(payload, device)


def smaller(payload: Payload) -> Iterator[Payload]:
    return smaller_models(payload)
