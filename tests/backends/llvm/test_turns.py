"""Lanes that run one at a time do so in both orders, synchronise, and report a lane that does not arrive."""

from __future__ import annotations

from backends.llvm.turns import Meeting, MissedError, Turns


def test_forwards_and_backwards() -> None:
    turns = Turns(4)
    meeting = Meeting(turns, 4)
    order = []

    def lane(number: int) -> None:
        for phase in range(3):
            order.append((phase, number))
            meeting.wait()

    turns.run(lane)
    assert not turns.broken
    assert order == [(phase, lane) for phase, lanes in enumerate(("0123", "3210", "0123")) for lane in map(int, lanes)]


def test_one_is_the_last() -> None:
    turns = Turns(6)
    pairs = [Meeting(turns, 2) for _ in range(3)]
    last: list[int] = []

    def lane(number: int) -> None:
        last.extend(number % 3 for _ in range(50) if pairs[number % 3].wait())

    turns.run(lane)
    assert not turns.broken
    assert sorted(last) == [0] * 50 + [1] * 50 + [2] * 50


def test_lane_that_does_not_arrive() -> None:
    turns = Turns(5)
    meeting = Meeting(turns, 5)
    missed = []

    def lane(number: int) -> None:
        try:
            for _ in range(2 if number == 3 else 3):
                meeting.wait()
        except MissedError:
            missed.append(number)

    turns.run(lane)
    assert turns.broken
    assert sorted(missed) == [0, 1, 2, 4]
