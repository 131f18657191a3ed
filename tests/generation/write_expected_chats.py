"""Write expected_chats.json: conversations as transformers formats them, with the templates of real tokenizers.

Run it with a Python that has transformers: `python tests/generation/write_expected_chats.py .models/tokenizers`.
Prompts that quote a tool are stored as their sha256, all others as text.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXPECTED = HERE / "expected_chats.json"

DATE = "26 Jul 2024"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Get the weather <now> & later",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
USER = {"role": "user", "content": "Grüße, 你好 👩‍🚀 <b>&amp;</b>"}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "question": {"messages": [USER]},
    "no prompt": {"messages": [USER], "add_generation_prompt": False},
    "system": {"messages": [{"role": "system", "content": "Be brief.\n"}, USER]},
    "turns": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            USER,
            {"role": "assistant", "content": "  Hello. \n"},
            {"role": "user", "content": ""},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes?"},
            {"role": "user", "content": "\tbye\n\n"},
        ]
    },
    "no thinking": {"messages": [USER], "enable_thinking": False},
    "tools": {"messages": [USER], "tools": [TOOL]},
    "tool call": {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "weather", "content": '{"sky": "clear"}'},
        ],
        "tools": [TOOL],
    },
    "wrong roles": {"messages": [USER, USER]},
}


def shorten(prompt: str, conversation: dict[str, Any]) -> str:
    """Return the prompt as it is stored."""
    return f"sha256 {hashlib.sha256(prompt.encode()).hexdigest()}" if "tools" in conversation else prompt


def main(folder: Path) -> None:
    from transformers import AutoTokenizer

    expected: dict[str, dict[str, str | None]] = {}
    for path in sorted(folder.iterdir()):
        tokenizer = AutoTokenizer.from_pretrained(path)
        prompts = expected.setdefault(path.name, {})
        for name, conversation in CONVERSATIONS.items():
            arguments: dict[str, Any] = {"add_generation_prompt": True, "date_string": DATE, **conversation}
            messages = arguments.pop("messages")
            try:
                prompt = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
            except Exception:
                prompts[name] = None  # the template rejects it
            else:
                prompts[name] = shorten(prompt, conversation)
    EXPECTED.write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
