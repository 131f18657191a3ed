"""The bytes of a saved file: a head, blocks one after the other, the manifest, and to the file's end the graph.

The head has sizes and the digest of the manifest, which has those of the blocks and the graph: no byte of the file is
outside of a checksum. Nothing is mapped from it, since whoever owns the file may cut it off at any time
(frontend/files.py); so blocks lie wherever the one before ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from struct import Struct
from typing import Protocol

from weft.cache.digests import CHUNK as _CHUNK
from weft.cache.digests import PIECE, chunks, name_of
from weft.errors import InvalidModelError, UnsupportedModelError
from weft.frontend.files import OpenFile
from weft.frontend.source import OpenedModel
from weft.records import dataclass
from weft.saved.manifest import Block, Manifest, from_bytes
from weft.threads import HelperPool, usable_cores

MAGIC = b"\x89weft\r\n\x1a"
FORMAT = 1  # of head and manifest
MEANING = 2
"""Of programs: a new number where one that was saved before would not run here, or would do something else. That their
records have other fields shows by itself (cache/serialization.py).
"""
LARGEST_MANIFEST = 64 << 20  # bytes
_DAMAGED = "fetch or make the file again"
_START = Struct("<8sII")  # magic, format, nothing
_SIZES = Struct("<QQQ32s")  # where the manifest begins, its size, that of the file, the manifest's digest
SIGNED = _START.size + _SIZES.size
SIGNATURE = 32
HEAD = SIGNED + SIGNATURE + 32  # with a signature and the checksum of all before it


class SavedContent(Protocol):
    """What a saved file is read from."""

    @property
    def size(self) -> int: ...

    def read_into(self, piece: memoryview, start: int) -> int:
        """Read bytes from a place on; how many there were."""
        ...


@dataclass(frozen=True, slots=True)
class BytesContent:
    """A file that is in memory."""

    view: memoryview

    @property
    def size(self) -> int:
        return len(self.view)

    def read_into(self, piece: memoryview, start: int) -> int:
        found = self.view[start : start + len(piece)]
        piece[: len(found)] = found
        return len(found)


@dataclass(frozen=True, slots=True)
class SavedHead:
    """A file's head and manifest, both as they were written. `name` covers all of the file."""

    name: str
    signed: bytes
    signature: bytes
    manifest: Manifest
    graph: Block | None


def content_of(opened: OpenedModel) -> OpenFile | BytesContent:
    """What a source is read from."""
    content = opened.content
    return content if isinstance(content, OpenFile) else BytesContent(content)


def holds_program(opened: OpenedModel) -> bool:
    """Whether a source begins as saved files do."""
    content = content_of(opened)
    return _read(content, 0, min(len(MAGIC), content.size)) == MAGIC


def read_head(content: SavedContent, file: str) -> SavedHead:
    """The head and the manifest; a WeftError where they are damaged, or of another format."""
    start = _read(content, 0, min(_START.size, content.size))
    if len(start) == _START.size and (found := _START.unpack(start)[1]) != FORMAT:
        problem = f"a saved program of format {found}, where this weft reads format {FORMAT}"
        raise UnsupportedModelError(problem, file=file, hint="compile the model again with the weft that is to load it")
    head = _read(content, 0, min(HEAD, content.size))
    if len(head) < HEAD or sha256(head[:-32]).digest() != head[-32:]:
        raise damaged("its head does not have its checksum", file)
    place, size, whole, digest = _SIZES.unpack_from(head, _START.size)
    if whole != content.size:
        raise damaged(f"it has {content.size:,} bytes of {whole:,}", file)
    end = place + size
    if size > LARGEST_MANIFEST or not HEAD <= place <= end <= whole:
        raise damaged(f"its manifest would have {size:,} bytes from {place:,} on", file)
    text = _read(content, place, size)
    if sha256(text).digest() != digest:
        raise damaged("its manifest does not have its checksum", file)
    try:
        manifest = from_bytes(text, HEAD, place)
    except ValueError as error:
        raise damaged(str(error), file) from error
    if not manifest.has_graph and end < whole:
        raise damaged("it goes on behind its end", file)
    graph = Block(end, whole - end, manifest.model) if manifest.has_graph else None
    return SavedHead(head[-32:].hex(), head[:SIGNED], head[SIGNED:-32], manifest, graph)


def head_to_sign(manifest: bytes, place: int, graph_bytes: int) -> bytes:
    """The part of a head that is signed."""
    whole = place + len(manifest) + graph_bytes
    return _START.pack(MAGIC, FORMAT, 0) + _SIZES.pack(place, len(manifest), whole, sha256(manifest).digest())


def signed_head(signed: bytes, signature: bytes) -> bytes:
    head = signed + signature
    return head + sha256(head).digest()


def damaged(problem: str, file: str) -> InvalidModelError:
    return InvalidModelError(f"the saved program is damaged: {problem}", file=file, hint=_DAMAGED)


def _read(content: SavedContent, start: int, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: content.read_into(memoryview(buffer), start)])


def read_block(content: SavedContent, block: Block, file: str) -> bytes:
    """What a block holds, checked."""
    buffer = bytearray(block.size)
    read_blocks(content, [(block, memoryview(buffer))], file)
    return bytes(buffer)


def read_blocks(content: SavedContent, wanted: Sequence[tuple[Block, memoryview | None]], file: str) -> None:
    """Read blocks into memory, or nowhere, and check that each is what its name says."""
    parts = [(number, start) for number, (block, _) in enumerate(wanted) for start in chunks(block.size)]

    def part(place: tuple[int, int]) -> bytes:
        number, start = place
        block, memory = wanted[number]
        end = min(start + _CHUNK, block.size)
        found, scratch = (
            sha256(),
            None if memory is not None else memoryview(bytearray(min(PIECE, block.size))),
        )
        while start < end:
            if memory is not None:
                piece = memory[start : min(start + PIECE, end)]
            else:
                assert scratch is not None
                piece = scratch[: end - start]
            if content.read_into(piece, block.start + start) < len(piece):
                break  # which its digest shows
            found.update(piece)
            start += len(piece)
        return found.digest()

    with HelperPool(min(usable_cores(), max(len(parts), 1))) as workers:
        digests = iter(list(workers.map(part, parts)))
    for block, _ in wanted:
        if name_of(block.size, [next(digests) for _ in chunks(block.size)]) != block.name:
            raise damaged(f"the {block.size:,} bytes from {block.start:,} on do not have their checksum", file)
