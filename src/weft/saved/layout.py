"""The layout of a saved file: a header, contiguous blocks, the manifest, and the graph to the end of the file.

The header has the digest of the manifest, and that has the digests of the blocks and of the graph: checksums cover all
bytes. The file is never mapped into memory, because its owner may truncate it at any time (frontend/files.py), so
blocks are not aligned.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from struct import Struct
from typing import Protocol

from weft.cache.digests import CHUNK, PIECE, chunks, combine_digests
from weft.errors import InvalidModelError, UnsupportedModelError
from weft.frontend.files import OpenFile
from weft.frontend.source import OpenedModel
from weft.records import dataclass
from weft.saved.manifest import Block, Manifest, from_bytes
from weft.threads import HelperPool, usable_cores

MAGIC = b"\x89weft\r\n\x1a"
FORMAT = 1  # of header and manifest
MEANING = 2
"""The version of the semantics of programs. Increase it if programs saved before would fail or give other results now.
Changed fields of their records are detected without it (cache/serialization.py).
"""
MAX_MANIFEST_SIZE = 64 << 20  # bytes
_START = Struct("<8sII")  # magic, format, padding
_SIZES = Struct("<QQQ32s")  # offset and size of the manifest, size of the file, digest of the manifest
SIGNED_SIZE = _START.size + _SIZES.size
SIGNATURE_SIZE = 32
HEADER_SIZE = SIGNED_SIZE + SIGNATURE_SIZE + 32  # with the checksum of all bytes before it


class SavedContent(Protocol):
    """The bytes of a saved file."""

    @property
    def size(self) -> int: ...

    def read_into(self, piece: memoryview, start: int) -> int:
        """Read bytes from an offset on, and return how many there were."""
        ...


@dataclass(frozen=True, slots=True)
class BytesContent:
    """A saved file in memory."""

    view: memoryview

    @property
    def size(self) -> int:
        return len(self.view)

    def read_into(self, piece: memoryview, start: int) -> int:
        available = self.view[start : start + len(piece)]
        piece[: len(available)] = available
        return len(available)


@dataclass(frozen=True, slots=True)
class SavedHeader:
    """The header and manifest of a file. `name` is a digest of the whole file."""

    name: str
    signed: bytes
    signature: bytes
    manifest: Manifest
    graph: Block | None


def get_content(opened: OpenedModel) -> OpenFile | BytesContent:
    """Return the bytes of a source."""
    content = opened.content
    return content if isinstance(content, OpenFile) else BytesContent(content)


def is_saved_program(opened: OpenedModel) -> bool:
    """Whether a source starts like a saved file."""
    content = get_content(opened)
    return _read_bytes(content, 0, min(len(MAGIC), content.size)) == MAGIC


def read_header(content: SavedContent, file: str) -> SavedHeader:
    """Read the header and the manifest; raise a WeftError if they are damaged, or of another format."""
    start = _read_bytes(content, 0, min(_START.size, content.size))
    if len(start) == _START.size and (file_format := _START.unpack(start)[1]) != FORMAT:
        problem = f"the saved program has format {file_format}, but this version of weft reads format {FORMAT}"
        raise UnsupportedModelError(problem, file=file, hint="compile the model again with this version of weft")
    header = _read_bytes(content, 0, min(HEADER_SIZE, content.size))
    if len(header) < HEADER_SIZE or sha256(header[:-32]).digest() != header[-32:]:
        raise damaged_error("the checksum of its header is wrong", file)
    offset, size, file_size, digest = _SIZES.unpack_from(header, _START.size)
    if file_size != content.size:
        raise damaged_error(f"it has {content.size:,} bytes instead of {file_size:,}", file)
    end = offset + size
    if size > MAX_MANIFEST_SIZE or not HEADER_SIZE <= offset <= end <= file_size:
        raise damaged_error(f"its manifest cannot have {size:,} bytes at offset {offset:,}", file)
    text = _read_bytes(content, offset, size)
    if sha256(text).digest() != digest:
        raise damaged_error("the checksum of its manifest is wrong", file)
    try:
        manifest = from_bytes(text, HEADER_SIZE, offset)
    except ValueError as error:
        raise damaged_error(str(error), file) from error
    if not manifest.has_graph and end < file_size:
        raise damaged_error("there are bytes after its end", file)
    graph = Block(end, file_size - end, manifest.model) if manifest.has_graph else None
    return SavedHeader(header[-32:].hex(), header[:SIGNED_SIZE], header[SIGNED_SIZE:-32], manifest, graph)


def make_signed_part(manifest: bytes, offset: int, graph_bytes: int) -> bytes:
    """Return the part of the header that is signed."""
    file_size = offset + len(manifest) + graph_bytes
    return _START.pack(MAGIC, FORMAT, 0) + _SIZES.pack(offset, len(manifest), file_size, sha256(manifest).digest())


def make_header(signed: bytes, signature: bytes) -> bytes:
    header = signed + signature
    return header + sha256(header).digest()


def damaged_error(problem: str, file: str) -> InvalidModelError:
    hint = "download or compile the file again"
    return InvalidModelError(f"the saved program is damaged: {problem}", file=file, hint=hint)


def _read_bytes(content: SavedContent, start: int, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: content.read_into(memoryview(buffer), start)])


def read_block(content: SavedContent, block: Block, file: str) -> bytes:
    """Read a block, and check its digest."""
    buffer = bytearray(block.size)
    read_blocks(content, [(block, memoryview(buffer))], file)
    return bytes(buffer)


def read_blocks(content: SavedContent, targets: Sequence[tuple[Block, memoryview | None]], file: str) -> None:
    """Read blocks and check their digests. Each is read into its memory, if it has one."""
    parts = [(number, start) for number, (block, _) in enumerate(targets) for start in chunks(block.size)]

    def read_chunk(part: tuple[int, int]) -> bytes:
        number, start = part
        block, memory = targets[number]
        end = min(start + CHUNK, block.size)
        digest = sha256()
        scratch = memoryview(bytearray(min(PIECE, block.size) if memory is None else 0))
        while start < end:
            piece = scratch[: end - start] if memory is None else memory[start : min(start + PIECE, end)]
            if content.read_into(piece, block.start + start) < len(piece):
                break  # the digest will differ
            digest.update(piece)
            start += len(piece)
        return digest.digest()

    with HelperPool(min(usable_cores(), max(len(parts), 1))) as workers:
        digests = iter(list(workers.map(read_chunk, parts)))
    for block, _ in targets:
        if combine_digests(block.size, [next(digests) for _ in chunks(block.size)]) != block.name:
            raise damaged_error(f"the checksum of the {block.size:,} bytes at offset {block.start:,} is wrong", file)
