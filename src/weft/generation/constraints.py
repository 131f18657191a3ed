"""Answers that match a JSON schema, a regular expression or a Lark grammar, through `llguidance`.

`ConstraintCompiler` belongs to a tokenizer, and makes a `Constraint` for each request. A constraint says which tokens
may come next, as a bit mask for the sampler, and takes the tokens that were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ExecutionError, InputError, MissingPackageError
from weft.generation.options import GenerationOptions

_HINTS = {
    "json_schema": "see the list of supported keywords in llguidance's documentation of JSON schemas",
    "regex": "use the syntax of Rust's regex crate, without anchors: the whole answer must match",
    "grammar": "use Lark's syntax, with a rule `start`",
}


class Constraint:
    """The state of one request in its grammar."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._mask = np.zeros((vocabulary + 31) // 32, np.uint32)

    def mask(self) -> NDArray[np.uint32]:
        """Return the bits of the tokens that may come next, the lowest bit first, in an array that later calls reuse.

        In a place where the answer may end these include the end tokens; when it must end there are no others.
        """
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        return self._mask

    def accept(self, token: int) -> None:
        """Take the next token of the answer."""
        if not self._matcher.consume_token(token):
            self._check()
            raise ExecutionError(f"token {token} does not match the constraint of the answer")

    def count_accepted(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens could come next, without taking them."""
        return int(self._matcher.validate_tokens(list(tokens)))

    def rollback(self, count: int) -> None:
        """Take back the last tokens."""
        if count and not self._matcher.rollback(count):
            self._check()
            raise ExecutionError(f"the constraint of the answer cannot take back {count} tokens")

    def copy(self) -> Constraint:
        """Copy the state, for another answer that continues the same tokens."""
        return Constraint(self._matcher.deep_copy(), len(self._mask) * 32)

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete, and only an end token may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def can_end(self) -> bool:
        """Whether the answer matches as it is."""
        return bool(self._matcher.is_accepting())

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().strip()
            raise ExecutionError(f"the constraint of the answer failed: {reason}", hint="simplify it")


class ConstraintCompiler:
    """Make constraints for one tokenizer.

    tokenizer: the text of its tokenizer.json.
    vocabulary: the number of logits, which may exceed that of the tokenizer's tokens.
    end_tokens: the tokens that end an answer.
    """

    def __init__(self, tokenizer: str, vocabulary: int, end_tokens: Sequence[int]) -> None:
        self._library = _import_library()
        self._vocabulary = vocabulary
        if not end_tokens:
            hint = "set eos_token_id in generation_config.json"
            raise InputError("a constraint needs an end token, and the model names none", hint=hint)
        try:
            self._tokenizer = self._library.LLTokenizer(tokenizer, n_vocab=vocabulary, eos_token=list(end_tokens))
        except ValueError as error:
            raise InputError(
                f"llguidance cannot use this tokenizer: {error}", hint="generate without json_schema, regex and grammar"
            ) from None

    def compile(self, options: GenerationOptions) -> Constraint | None:
        """Make the constraint of a request, or None if it has none."""
        matchers = self._library.LLMatcher
        if options.json_schema is not None:
            name, grammar = "json_schema", matchers.grammar_from_json_schema(options.json_schema)
        elif options.regex is not None:
            name, grammar = "regex", matchers.grammar_from_regex(options.regex)
        elif options.grammar is not None:
            name, grammar = "grammar", matchers.grammar_from_lark(options.grammar)
        else:
            return None
        matcher = matchers(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise InputError(f"{name} cannot be used: {matcher.get_error().strip()}", hint=_HINTS[name])
        return Constraint(matcher, self._vocabulary)


def _import_library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        problem = "json_schema, regex and grammar need the package llguidance"
        raise MissingPackageError(problem, hint="pip install weft-onnx[text]") from error
    return llguidance
