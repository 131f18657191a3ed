"""Test the tables of docs/guides/generate-text.md; WEFT_WRITE_DOCS=1 writes the one of cache memory."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import weft
from weft.quantities import format_bytes

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts" / "make-test-folders"
PAGE = ROOT / "docs" / "guides" / "generate-text.md"
TITLES = {
    "qwen2.5-0.5b": "Qwen2.5-0.5B",
    "qwen3-0.6b": "Qwen3-0.6B",
    "llama-3.2-1b": "Llama-3.2-1B",
    "gemma-3-270m": "Gemma-3-270m",
    "phi-3-mini": "Phi-3-mini",
}
LENGTHS = (1024, 4096, 32768)
FLOAT16_BYTES = 2
TABLE = re.compile(r"(<!-- cache memory: .*? -->\n)(?:\n\|.*?\n(?=\n))?", re.DOTALL)


def read_families() -> dict[str, Any]:
    """Return the published shapes that scripts/make-test-folders builds models of."""
    module = ModuleType("make_test_folders")
    sys.modules[module.__name__] = module  # dataclasses look there
    code = compile(SCRIPT.read_text(encoding="utf-8"), str(SCRIPT), "exec")  # an import would write bytecode beside it
    exec(code, vars(module))
    del sys.modules[module.__name__]
    return {name: module.FAMILIES[name].sizes for name in TITLES}


def cache_bytes(layers: int, key_heads: int, head_size: int, itemsize: int) -> int:
    """Return the bytes of keys and values of one token."""
    return 2 * layers * key_heads * head_size * itemsize


def cache_table() -> str:
    """Return the table of cache memory by context length."""
    head = ("model", "layers × heads × size", "one token", *(f"{length:,} tokens" for length in LENGTHS))
    rows = [head, ("---",) * len(head)]
    for name, sizes in read_families().items():
        layers, heads = sizes["num_hidden_layers"], sizes["num_key_value_heads"]
        size = sizes.get("head_dim") or sizes["hidden_size"] // sizes["num_attention_heads"]
        token = cache_bytes(layers, heads, size, FLOAT16_BYTES)
        context = sizes["max_position_embeddings"]
        cells = [format_bytes(token * length) if length <= context else "" for length in LENGTHS]
        rows.append((TITLES[name], f"{layers} × {heads} × {size}", format_bytes(token), *cells))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("|  |", "| |")


def test_cache_memory_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    expected = TABLE.sub(lambda match: f"{match[1]}\n{cache_table()}", page)
    assert cache_table() in expected
    if os.environ.get("WEFT_WRITE_DOCS"):
        PAGE.write_text(expected, encoding="utf-8")
        page = expected
    assert page == expected, "run WEFT_WRITE_DOCS=1 pytest tests/docs/test_generation_page.py"


def test_formula_is_that_of_a_generator() -> None:
    generator = weft.Generator(device="cpu")
    memory = generator.memory()
    assert memory.token_bytes == cache_bytes(layers=4, key_heads=2, head_size=32, itemsize=4)  # its genai_config.json
    assert memory.cache == memory.token_bytes * memory.tokens


def test_every_option_is_in_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    cells = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert {field.name for field in fields(weft.GenerationOptions)} <= listed
