"""Text generation by the inference protocol, and by Triton's `generate` endpoints."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import RunTimeoutError
from weft.generation.options import GenerationOptions
from weft.server.http import HttpError
from weft.server.openai.start import AnswerLimits, PromptRequest, open_answers
from weft.server.served_model import ServedModel

if TYPE_CHECKING:
    from weft.generation.answers import AnswerStream

RENAMED = {"max_tokens": "max_new_tokens"}
HIDDEN = ("stream", "text_input", "exclude_input_in_output", "sampling_parameters", "timeout", "id")
OPTIONS = frozenset(GenerationOptions.__slots__) - {"n", "num_beams"}


class TextRequest:
    """A prompt, the options of its answer, and whether the response repeats the prompt."""

    def __init__(self, arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
        """`parameters`: of the request; those of `sampling_parameters`, a JSON text, go before them."""
        self.prompt = _text(arrays, "text_input")
        self.excludes_prompt = _flag(arrays, "exclude_input_in_output", default=True)
        self.streams = _flag(arrays, "stream", default=False)
        stated = {name: content for name, content in parameters.items() if name not in HIDDEN}
        if "sampling_parameters" in arrays:
            try:
                more = json.loads(_text(arrays, "sampling_parameters"))
            except ValueError as error:
                raise HttpError(400, f"sampling_parameters is not JSON: {error}") from None
            if not isinstance(more, dict):
                raise HttpError(400, "sampling_parameters must be a JSON object")
            stated.update(more)
        self.options = {}
        for name, content in stated.items():
            option = RENAMED.get(name, name)
            if option not in OPTIONS:
                continue  # of other servers, or of the protocol itself
            self.options[option] = content


@dataclass(frozen=True, slots=True)
class _Prepared:
    prompts: Sequence[PromptRequest]


async def generate(
    served: ServedModel, request: TextRequest, max_waiting: int, timeout: float | None
) -> AsyncGenerator[str, None]:
    """Yield the pieces of an answer; the first repeats the prompt if the request wants that."""
    generator = served.generator
    assert generator is not None

    def prepare() -> _Prepared:
        return _Prepared([PromptRequest(generator.tokenizer.encode(request.prompt), request.options)])

    limits = AnswerLimits(max_waiting)
    async with open_answers(generator, prepare, "text_input", limits, served.begin_request()) as answers:
        stream: AnswerStream = answers.streams[0][0]
        if not request.excludes_prompt:
            yield request.prompt
        pieces = stream.__aiter__()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                left = None if end is None else max(end - time.monotonic(), 0)
                piece = await asyncio.wait_for(pieces.__anext__(), left)
            except StopAsyncIteration:
                return
            except (TimeoutError, asyncio.TimeoutError):
                raise RunTimeoutError(f"the answer was not done after {timeout:g} s") from None
            yield piece


def text_array(text: str) -> np.ndarray[Any, Any]:
    """Return a text as the output of a model."""
    array = np.empty(1, object)
    array[0] = text
    return array


def _text(arrays: Mapping[str, Any], name: str) -> str:
    array = arrays.get(name)
    if array is None or array.size != 1:
        raise HttpError(400, f"the request lacks {name}, which is one text")
    return str(array.reshape(-1)[0])


def _flag(arrays: Mapping[str, Any], name: str, default: bool) -> bool:
    array = arrays.get(name)
    return default if array is None or array.size != 1 else bool(array.reshape(-1)[0])
