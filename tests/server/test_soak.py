"""A short run of `scripts/soak-server`: answers, faults and the end of a server under load."""

from __future__ import annotations

from server.soak import soak


def test_server_under_load_and_faults() -> None:
    run = soak(8, connections=200)
    assert not run.problems, (run.seed, run.problems[:10])
    assert run.counts["status 200"] > 100
    assert run.counts["changed"]
    assert run.counts["bad 400"]
    assert run.counts["left"]
    assert run.counts["stalled"]
