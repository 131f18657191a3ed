"""unisim computes similarities of texts, and matches them with an index."""

from __future__ import annotations

from script_output import print_results
from unisim import TextSim

QUERIES = ["this is a text", "I love dogs", "a completely different sentence about compilers"]
TARGETS = ["This is a txet!", "I love cats", "I love dogs very much", "this is a text " * 40, "Ψ unrelated"]

similarity = TextSim(verbose=0)


def results() -> list[object]:
    pairs = [float(similarity.similarity(query, target)) for query in QUERIES for target in TARGETS]
    matches = similarity.match(QUERIES, TARGETS)
    return [pairs, matches["target"].tolist(), [float(value) for value in matches["similarity"]]]


if __name__ == "__main__":
    print_results(results)
