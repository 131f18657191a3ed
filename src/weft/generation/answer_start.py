"""How the answer of an encoder–decoder begins: its first tokens, and tokens that may not follow.

Whisper's answers begin with tokens for the language, the task and the lack of timestamps; without a language the model
chooses one. Translation models (NLLB, M2M100, mBART) begin with the target language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from weft.errors import InputError, UnsupportedModelError, short_repr
from weft.generation.config_files import Config, read_optional_config
from weft.generation.model_folder import ModelFolder
from weft.generation.tokenizer import Tokenizer
from weft.ir.arrays import Array
from weft.quantities import join_few
from weft.records import dataclass
from weft.threads import cached_property

TRANSCRIBE = "transcribe"
START, NO_TIMESTAMPS = "<|startoftranscript|>", "<|notimestamps|>"  # tokens of Whisper
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
ENGLISH_VOCABULARY = 51_864  # of Whisper's models for English alone


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """The first tokens of an answer.

    tokens: what the decoder begins with.
    forced: after them, the tokens of which the likeliest is taken, by position; they are no part of the answer.
    suppressed: tokens that never follow; first_suppressed: tokens that do not follow at once.
    """

    tokens: tuple[int, ...]
    forced: tuple[tuple[int, ...], ...] = ()
    suppressed: tuple[int, ...] = ()
    first_suppressed: tuple[int, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether any token may follow at any position."""
        return not (self.forced or self.suppressed or self.first_suppressed)

    def restrict(self, logits: Array, position: int) -> Array:
        """Exclude tokens from the logits [vocabulary] of a position, counted from the beginning of the decoder."""
        number = position - len(self.tokens)
        result: Array = logits.copy()
        if 0 <= number < len(self.forced):
            candidates = list(self.forced[number])
            chosen = candidates[int(np.argmax(logits[candidates]))]
            result[:] = -np.inf
            result[chosen] = logits[chosen]
            return result
        result[list(self.suppressed)] = -np.inf
        if number == len(self.forced):
            result[list(self.first_suppressed)] = -np.inf
        return result


class AnswerStarts:
    """Makes the starts of answers from the configuration of a folder."""

    def __init__(self, folder: ModelFolder, tokenizer: Callable[[], Tokenizer]) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._knows_start = folder.decoder_start_token is not None or folder.model_type != "whisper"
        first = folder.decoder_start_token
        if not self._knows_start:  # a folder of onnxruntime-genai, whose programs pass the first tokens
            first = tokenizer().id_of(START)
        first = folder.start_token if first is None else first
        if first is None:
            problem = "the first token of answers is not known"
            hint = 'state "decoder_start_token_id" in config.json'
            raise UnsupportedModelError(problem, file=str(folder.path), hint=hint)
        self._first = first

    def make(self, language: str | None, task: str | None) -> AnswerStart:
        """Return the start for a language and a task; None for what the model chooses."""
        if self._folder.model_type == "whisper":
            tokens, forced = self._start_speech(language, task)
        else:
            tokens, forced = self._start_text(language, task), ()
        suppressed = self._in_vocabulary([*self._folder.suppress_tokens, *self._bad_tokens])
        return AnswerStart(tokens, forced, suppressed, self._in_vocabulary(self._folder.begin_suppress_tokens))

    def _in_vocabulary(self, tokens: Iterable[int]) -> tuple[int, ...]:
        size = self._folder.vocabulary
        return tuple(token for token in tokens if size is None or token < size)

    def _start_speech(
        self, language: str | None, task: str | None
    ) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        forced = self._folder.forced_tokens
        if not self._languages:
            if language is not None or task is not None:
                problem = f"{self._folder.name} knows one language and task"
                raise InputError(problem, file=str(self._folder.path), hint="leave out language and task")
            first_tokens = [self._first, *(forced[position] for position in sorted(forced))]
            silent = None if self._knows_start else self._tokenizer().id_of(NO_TIMESTAMPS)
            if silent is not None:
                first_tokens = [self._first, silent]
            return tuple(first_tokens), ()
        task_token = self._find_task(task, forced.get(2))
        silent = self._config.integer("no_timestamps_token_id")
        if silent is None:
            silent = forced.get(3) or self._tokenizer().id_of(NO_TIMESTAMPS)
        ending = (task_token,) if silent is None else (task_token, silent)
        if language is None and 1 not in forced:
            choices = tuple(sorted(set(self._languages.values())))
            return (self._first,), (choices, *((token,) for token in ending))
        token = forced[1] if language is None else self._find_language(language)
        return (self._first, token, *ending), ()

    def _find_language(self, language: str) -> int:
        token = self._languages.get(_bare_name(language)) if isinstance(language, str) else None
        if token is None:
            codes = join_few(sorted(self._languages), 200)
            raise InputError(f"the model knows no language {short_repr(language)}", hint=f"it knows {codes}")
        return token

    def _find_task(self, task: str | None, default: int | None) -> int:
        if task is None and default is not None:
            return default
        name = TRANSCRIBE if task is None else task
        tasks = {key: token for key, token in self._config.section("task_to_id").fields.items() if type(token) is int}
        token = tasks.get(name)
        if token is None and isinstance(name, str):
            token = self._tokenizer().id_of(f"<|{name}|>")
        if token is None:
            hint = f"it knows {', '.join(tasks) or 'transcribe and translate'}"
            raise InputError(f"the model knows no task {short_repr(task)}", hint=hint)
        return token

    def _start_text(self, language: str | None, task: str | None) -> tuple[int, ...]:
        if task is not None:
            raise InputError("the model has no tasks", file=str(self._folder.path), hint="leave out task")
        forced = dict(self._folder.forced_tokens)
        token = next(iter(self._config.tokens("forced_bos_token_id")), None)
        if language is not None:
            token = self._languages.get(_bare_name(language)) if isinstance(language, str) else None
            token = self._tokenizer().id_of(language) if token is None else token
            if token is None:
                hint = "write the language as its token, such as fra_Latn, or leave it out"
                raise InputError(f"the model knows no language {short_repr(language)}", hint=hint)
        if token is not None:
            forced[1] = token
        return (self._first, *(forced[position] for position in sorted(forced)))

    @cached_property
    def _config(self) -> Config:
        generation = read_optional_config(self._folder.path / "generation_config.json")
        return generation if generation.fields else read_optional_config(self._folder.path / "config.json")

    @cached_property
    def _bad_tokens(self) -> list[int]:
        """The tokens of `bad_words_ids`, such as the padding of Marian; words of several tokens are not excluded."""
        words = self._config.fields.get("bad_words_ids") or []
        is_list = isinstance(words, list) and all(isinstance(word, list) for word in words)
        if not is_list or not all(type(token) is int and token >= 0 for word in words for token in word):
            raise self._config.field_error("bad_words_ids", "a list of lists of tokens")
        return [word[0] for word in words if len(word) == 1]

    @cached_property
    def _languages(self) -> Mapping[str, int]:
        """The tokens of languages by their codes."""
        if not self._knows_start:
            tokens = self._tokenizer().backend.get_vocab() if self._folder.vocabulary != ENGLISH_VOCABULARY else {}
            return {match[1]: number for text, number in tokens.items() if (match := LANGUAGE.fullmatch(text))}
        fields = self._config.section("lang_to_id").fields
        return {_bare_name(code): token for code, token in fields.items() if type(token) is int}


def _bare_name(language: str) -> str:
    return language.strip("<|>").lower()
