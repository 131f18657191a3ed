"""What a model's file says of itself beside its graph: who made it, with what, and what they noted down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from weft.quantities import few, shortened
from weft.records import dataclass
from weft.tables import ShownTable, Tabled

_SHOWN = 80  # characters of a field
_MOST_ITEMS = 4  # of a mapping


@dataclass(frozen=True, slots=True)
class Metadata(Tabled):
    """Of a model, as its file has it; what the file leaves out is empty, or 0.

    `opsets` are the versions of operators by domain, ONNX's own as "ai.onnx". `properties` are the file's custom ones
    (its `metadata_props`).
    """

    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int = 0
    ir_version: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict, hash=False)
    description: str = ""
    graph_name: str = ""
    graph_description: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def producer(self) -> str:
        """What wrote the file, with its version."""
        return f"{self.producer_name} {self.producer_version}".strip()

    def __repr__(self) -> str:
        """What the file states, long texts not to their ends."""
        return f"Metadata({', '.join(f'{name}={_short(content)}' for name, content in self._stated())})"

    def _stated(self) -> Iterator[tuple[str, object]]:
        for name in self.__slots__:
            if getattr(self, name):
                yield name, getattr(self, name)

    def _tables(self) -> Iterator[ShownTable]:
        rows: list[tuple[str, object]] = []
        for name, content in self._stated():
            if isinstance(content, Mapping):
                rows += [(f"{name}[{shortened(repr(key))}]", item) for key, item in content.items()]
            else:
                rows.append((name, content))
        yield ShownTable(rows)


def _short(content: object) -> str:
    if isinstance(content, Mapping):
        return f"{{{few((f'{_short(key)}: {_short(item)}' for key, item in content.items()), _MOST_ITEMS)}}}"
    if isinstance(content, str) and len(content) > _SHOWN:
        return f"{content[:_SHOWN]!r}…"
    return repr(content)
