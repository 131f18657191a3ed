"""Stop strings in streamed text: the text ends before the first one, and no part of one is ever emitted.

`StopStrings` takes text in pieces of any lengths. It keeps back the longest suffix of the text that may still become a
stop string, and emits the rest. The result does not depend on where the pieces are divided: the stop string that is
complete first ends the text, and the longest of several that are complete at the same character.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Find the first of some strings in a stream of text.

    match: the stop string that ended the text, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.match: str | None = None
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._prefixes = {stop[:length] for stop in self._stops for length in range(1, len(stop))}
        self._longest = max(map(len, self._prefixes), default=0)
        self._tail = ""

    def put(self, piece: str) -> str:
        """Take the next piece of text, and return the text that can be shown now."""
        if self.match is not None:
            return ""
        if not self._stops:
            return piece
        text = self._tail + piece
        ends = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            _, start, self.match = min(ends)
            self._tail = ""
            return text[:start]
        hold = self._count_tail(text)
        self._tail = text[len(text) - hold :]
        return text[: len(text) - hold]

    def finish(self) -> str:
        """Return the text that was kept back: no stop string follows."""
        text, self._tail = self._tail, ""
        return text

    def _count_tail(self, text: str) -> int:
        """Return the length of the longest suffix of the text that is the beginning of a stop string."""
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[len(text) - length :] in self._prefixes:
                return length
        return 0
