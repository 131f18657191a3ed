"""A model file's metadata: producer, versions, descriptions and custom properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from weft.quantities import join_few, shorten
from weft.records import dataclass
from weft.tables import ShownAsTables, Table

_MOST_CHARACTERS = 80  # of a field
_MOST_ITEMS = 4  # of a mapping


@dataclass(frozen=True, slots=True)
class Metadata(ShownAsTables):
    """A model's metadata; what the file leaves out is empty or 0.

    `opsets` are the versions of operators by domain, ONNX's own as "ai.onnx". `properties` are the file's
    `metadata_props`.
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
        """The producer's name and version."""
        return f"{self.producer_name} {self.producer_version}".strip()

    def __repr__(self) -> str:
        """Show the fields that are set, with long texts truncated."""
        return f"Metadata({', '.join(f'{name}={_truncate(content)}' for name, content in self._set_fields())})"

    def _set_fields(self) -> Iterator[tuple[str, object]]:
        for name in self.__slots__:
            if getattr(self, name):
                yield name, getattr(self, name)

    def _tables(self) -> Iterator[Table]:
        rows: list[tuple[str, object]] = []
        for name, content in self._set_fields():
            if isinstance(content, Mapping):
                rows += [(f"{name}[{shorten(repr(key))}]", item) for key, item in content.items()]
            else:
                rows.append((name, content))
        yield Table(rows)


def _truncate(content: object) -> str:
    if isinstance(content, Mapping):
        return f"{{{join_few((f'{_truncate(key)}: {_truncate(item)}' for key, item in content.items()), _MOST_ITEMS)}}}"
    if isinstance(content, str) and len(content) > _MOST_CHARACTERS:
        return f"{content[:_MOST_CHARACTERS]!r}…"
    return repr(content)
