"""Functions that run only on the host, by name: strings, sequences, sizes that depend on data.

Each takes arrays (lists for sequences, None for empty optionals, dicts for maps) and attributes as keywords, and
returns a tuple of results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.backends.reference.host.coupling import COUPLING
from weft.backends.reference.host.hashes import HASHES
from weft.backends.reference.host.images import IMAGES
from weft.backends.reference.host.learning import LEARNING
from weft.backends.reference.host.ngrams import NGRAMS
from weft.backends.reference.host.refusal import REFUSAL
from weft.backends.reference.host.selection import SELECTION
from weft.backends.reference.host.sequences import SEQUENCES
from weft.backends.reference.host.text import TEXT

HOST_FUNCTIONS: dict[str, Callable[..., tuple[Any, ...]]] = {
    **COUPLING,
    **HASHES,
    **IMAGES,
    **LEARNING,
    **NGRAMS,
    **REFUSAL,
    **SELECTION,
    **SEQUENCES,
    **TEXT,
}
