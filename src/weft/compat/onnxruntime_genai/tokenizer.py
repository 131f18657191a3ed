"""`Tokenizer` and `TokenizerStream`: text to tokens and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.compat.onnxruntime_genai.config import Config
from weft.compat.onnxruntime_genai.errors import convert_errors
from weft.compat.onnxruntime_genai.model import Model
from weft.compat.onnxruntime_genai.tensors import Tensor
from weft.generation import tokenizer as weft_tokenizer
from weft.generation.chat import DEFAULT, ChatTemplates
from weft.generation.text_stream import TextStream

_OPTIONS = {"add_special_tokens": False, "skip_special_tokens": True}
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Tokenizer:
    """The tokenizer of a model's folder."""

    def __init__(self, source: Model | Config | str | PathLike[str]) -> None:
        config = source.config if isinstance(source, Model) else source
        self._config = config if isinstance(config, Config) else Config(config)
        self._folder = self._config.describe_folder()
        with convert_errors():
            self._tokenizer = weft_tokenizer.Tokenizer.open(self._folder.path)
        self._options = dict(_OPTIONS)

    @property
    def bos_token_id(self) -> int:
        return _number(self._folder.start_token)

    @property
    def eos_token_ids(self) -> NDArray[np.int32]:
        return np.array(self._folder.end_tokens, np.int32)

    @property
    def pad_token_id(self) -> int:
        return _number(self._folder.pad_token)

    @property
    def bot_token_id(self) -> int:
        return self._named_id("bot_token_id")

    @property
    def eot_token_id(self) -> int:
        return self._named_id("eot_token_id")

    @property
    def bor_token_id(self) -> int:
        return self._named_id("bor_token_id")

    @property
    def eor_token_id(self) -> int:
        return self._named_id("eor_token_id")

    def _named_id(self, name: str) -> int:
        return _number(self._config.model_fields().get(name))

    def update_options(self, **options: str) -> None:
        for name, value in options.items():
            if name not in _OPTIONS:
                raise RuntimeError(f"Invalid tokenizer option key: {name}")
            if str(value).lower() not in _FLAGS:
                raise RuntimeError(f"Invalid value of the tokenizer option {name}: {value!r}; write 'true' or 'false'")
            self._options[name] = _FLAGS[str(value).lower()]

    def encode(self, text: str) -> NDArray[np.int32]:
        with convert_errors():
            return np.array(self._tokenizer.encode(text, special=self._options["add_special_tokens"]), np.int32)

    def encode_batch(self, texts: Sequence[str]) -> Tensor:
        """Encode texts as the rows of a tensor, with padding at the end of short ones."""
        rows = [self.encode(text) for text in texts]
        batch = np.full((len(rows), max(map(len, rows), default=0)), self.pad_token_id, np.int32)
        for target, row in zip(batch, rows):
            target[: len(row)] = row
        return Tensor(batch)

    def to_token_id(self, text: str) -> int:
        """Return the id of a token, -1 for a text that is not one token."""
        return _number(self._tokenizer.id_of(text))

    def decode(self, tokens: Any) -> str:
        with convert_errors():
            numbers = np.asarray(tokens).astype(np.int32).ravel().tolist()
            return self._tokenizer.decode(numbers, skip_special=self._options["skip_special_tokens"])

    def decode_batch(self, tokens: Tensor) -> list[str]:
        if not isinstance(tokens, Tensor):
            problem = f"expected a Tensor, not a {type(tokens).__name__}"
            raise TypeError(f"decode_batch(): incompatible function arguments: {problem}")
        return [self.decode(row) for row in tokens.as_numpy()]

    def create_stream(self) -> TokenizerStream:
        return TokenizerStream(self._tokenizer.stream(skip_special=self._options["skip_special_tokens"]))

    def apply_chat_template(
        self,
        messages: str,
        *,
        template_str: str | None = None,
        tools: str | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Format messages, the text of a JSON list, as a prompt."""
        if not isinstance(messages, str):
            problem = f"messages are the text of a JSON list, not a {type(messages).__name__}: call json.dumps"
            raise TypeError(f"apply_chat_template(): incompatible function arguments: {problem}")
        templates = self._tokenizer.chat_templates
        if template_str:
            templates = ChatTemplates({DEFAULT: template_str}, self._tokenizer.named_tokens, self._folder.path)
        with convert_errors():
            return templates.render(
                _parse(messages, "messages"),
                tools=_parse(tools, "tools") if tools else None,
                add_generation_prompt=add_generation_prompt,
            )


class TokenizerStream:
    """Decodes tokens one by one; each piece is whole characters."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream

    def decode(self, token: int) -> str:
        with convert_errors():
            return self._stream.put(token)


def _number(token: object) -> int:
    return token if isinstance(token, int) else -1


def _parse(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RuntimeError(f"{name} are not JSON: {error}") from error
