"""Text to tokens and back, through Hugging Face's `tokenizers` (the extra `weft-onnx[text]`)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, check_unicode, short_repr
from weft.generation.chat import ChatTemplates, read_chat_templates
from weft.generation.text_stream import TextStream, build_stages
from weft.generation.tokenizer_files import TokenizerFiles, call_library, read_tokenizer_files

if TYPE_CHECKING:
    import tokenizers

MAX_TOKEN = (1 << 32) - 1


class Tokenizer:
    """The tokenizer of a model's folder. All methods can be called from several threads.

    Text is decoded as the tokenizer's decoder gives it: `clean_up_tokenization_spaces`, which removes spaces before
    punctuation and damages code, is not applied.
    """

    def __init__(self, files: TokenizerFiles, templates: ChatTemplates, path: Path) -> None:
        self.path = path
        self.backend: tokenizers.Tokenizer = files.backend
        self.named_tokens: Mapping[str, str] = files.named_tokens
        """The texts of special tokens: `bos_token`, `eos_token`, `pad_token`, …"""
        self.chat_templates = templates
        self._special = frozenset(
            number for number, token in files.backend.get_added_tokens_decoder().items() if token.special
        )
        decoder = files.backend.decoder
        self._decoder = None if decoder is None else decoder.__getstate__()

    @classmethod
    def open(cls, path: str | Path) -> Tokenizer:
        """Read the tokenizer and the chat templates of a folder."""
        folder = Path(path)
        files = read_tokenizer_files(folder)
        return cls(files, read_chat_templates(folder, files.config, files.named_tokens), folder)

    def __repr__(self) -> str:
        return f"Tokenizer({str(self.path)!r}, {self.vocabulary} tokens)"

    @property
    def vocabulary(self) -> int:
        """The number of tokens, with added ones. The model's can be larger."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that `decode` skips."""
        return self._special

    def id_of(self, token: str) -> int | None:
        """Return the id of a token by its text, such as `<|im_end|>`; None if there is no such token."""
        return self.backend.token_to_id(token)

    def text_of(self, token: int) -> str | None:
        """Return a token as the vocabulary writes it; None if there is no such token."""
        return self.backend.id_to_token(_check_token(token))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return the tokens of a text.

        special: whether to add the tokens that the model expects around a text (the first token of Llama). False suits
        the result of `chat`, which has them.
        """
        if not isinstance(text, str):
            raise InputError(f"the text is {short_repr(text)}, not a str", hint="pass a str")
        check_unicode(text)
        return list(call_library(self.backend.encode, text, add_special_tokens=special, file=self.path).ids)

    def decode(self, tokens: Iterable[int], skip_special: bool = True) -> str:
        """Return the text of tokens. Ids beyond the vocabulary have no text."""
        numbers = [_check_token(token) for token in tokens]
        text: str = call_library(self.backend.decode, numbers, skip_special_tokens=skip_special, file=self.path)
        return text

    def stream(self, skip_special: bool = True) -> TextStream:
        """Return a stream that decodes tokens one by one; its pieces together are `decode` of all of them."""

        def token_text(token: int) -> str | None:
            token = _check_token(token)
            return None if skip_special and token in self._special else self.backend.id_to_token(token)

        return TextStream(token_text, build_stages(self._decoder, self._decode_texts))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **variables: Any,
    ) -> str:
        """Format messages as the prompt of a chat model; encode it with `special=False`.

        messages: `{"role": "user", "content": "…"}`, and what else the template reads.
        template: the name of a template, where the folder has several.
        variables: further variables of the template, such as `enable_thinking` of Qwen3.
        """
        return self.chat_templates.render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            template=template,
            variables=variables,
        )

    def _decode_texts(self, texts: list[str]) -> str:
        decoder = self.backend.decoder
        text: str = call_library(decoder.decode, texts, file=self.path)
        return text


def _check_token(token: int) -> int:
    try:
        number = operator.index(token)
    except TypeError as error:
        raise InputError(f"a token is {short_repr(token)}, not an integer", hint="pass ids of tokens") from error
    if not 0 <= number <= MAX_TOKEN:
        raise InputError(f"a token is {number}, but ids are from 0 to {MAX_TOKEN}", hint="pass ids of tokens")
    return number
