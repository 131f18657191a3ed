"""Compressed bodies: gzip and deflate."""

from __future__ import annotations

import zlib

from weft.server.http import HttpError, Request

GZIP, ZLIB = 31, 15  # window bits that select the format
SMALLEST = 1 << 12  # bytes of a response that is worth compressing
LEVEL = 1


def decompress(body: bytes | bytearray, encoding: str, limit: int) -> bytes:
    """Decompress the body of a request; HttpError if it is damaged, or larger than `limit`."""
    encoding = encoding.strip().lower()
    if encoding == "identity":
        return bytes(body)
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise HttpError(415, f"Content-Encoding {encoding[:40]!r} is not known; use gzip or deflate")
    reader = zlib.decompressobj(ZLIB if encoding == "deflate" else GZIP)
    try:
        content = reader.decompress(body, limit + 1)
    except zlib.error as error:
        raise HttpError(400, f"the body is not {encoding}: {error}") from None
    if len(content) > limit:
        raise HttpError(413, f"the decompressed body has more than {limit:,} bytes, which is the limit")
    if not reader.eof or reader.unused_data:
        raise HttpError(400, f"the body is not one whole stream of {encoding}")
    return content


def compress(content: bytes, request: Request, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Compress a response to a request for inference if its client takes that, and add the header."""
    accepted = request.headers.get(b"accept-encoding")
    if accepted is None or len(content) < SMALLEST or not request.path.endswith("/infer"):
        return content
    encodings = {part.partition(";")[0].strip().lower() for part in accepted.decode("latin-1").split(",")}
    for name, bits in (("gzip", GZIP), ("deflate", ZLIB)):
        if name in encodings:
            writer = zlib.compressobj(LEVEL, zlib.DEFLATED, bits)
            headers.append((b"content-encoding", name.encode()))
            return writer.compress(content) + writer.flush()
    return content
