"""`weft.Generator`: text from a language model in a folder."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import index
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, TypeGuard, Union

import numpy as np

from weft.errors import (
    ExecutionError,
    InputError,
    MissingFileError,
    MissingPackageError,
    OutOfMemoryError,
    UnsupportedModelError,
    short_repr,
)
from weft.generation.answer_chain import AnswerChain, Chunk
from weft.generation.answers import Answer, AnswerStream, skip_tokens
from weft.generation.beams import BeamSearch, check_beam_options
from weft.generation.cache_size import choose_blocks
from weft.generation.constraints import ConstraintCompiler
from weft.generation.decoder import (
    BLOCK_SIZE,
    Decoder,
    DecoderInputs,
    PagedDecoder,
    StateDecoder,
    context_limit,
    load_programs,
)
from weft.generation.draft import DraftModel
from weft.generation.encoder_decoder import DEFAULT_LENGTH as ENCODER_DECODER_LENGTH
from weft.generation.encoder_decoder import EncoderDecoderModels
from weft.generation.engine import Engine, EngineStatistics
from weft.generation.folder import open_folder
from weft.generation.memory import GenerationMemory, compute_memory, model_weights
from weft.generation.options import GenerationOptions
from weft.generation.probes import check_length, probe_programs, takes_chunks
from weft.generation.sampler import SampledRow, Sampler
from weft.generation.sequence import Sequence as TokenSequence
from weft.generation.sources import Source, SourceReader
from weft.generation.tokenizer import Tokenizer
from weft.loading import load
from weft.runtime.arguments import whole_number
from weft.runtime.memory import parse_bytes
from weft.threads import cached_property

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.runtime.model import Model
    from weft.runtime.policy import DeviceOption

DEMO_MODEL = Path(__file__).parent / "demo_model"
Messages = Sequence[Mapping[str, Any]]
Prompt = Union[str, Sequence[int], "PathLike[str]", "NDArray[Any]"]
Stream = Union[AnswerStream, AnswerChain]


class Generator:
    """A language model that generates text.

        generator = weft.Generator("folder")
        print(generator("Once upon a time", max_new_tokens=50))

    Requests of all threads run together as one batch, and each gets the same tokens as alone; see
    docs/guides/generate-text.md.

    path: a folder of onnxruntime-genai, optimum or transformers.js, or a decoder's .onnx file with its tokenizer beside
        it; None for the small model that comes with weft.
    device: as for `weft.load`.
    max_length: the most tokens of a prompt and its answer together; by default the model's context, at most 4096.
    memory_limit: bytes, or a string such as "2GB", for weights, cache and steps together.
    variant: which files of an optimum or transformers.js folder to load, such as "q4" or "fp16".
    max_batch: the most sequences that run at once.
    chunk: the most prompt tokens in one step.
    speculate: propose the next tokens from earlier text that repeats, and verify several in one step; the answers are
        the same.
    draft: the folder of a smaller model with the same vocabulary, which proposes tokens while one sequence runs alone;
        the answers are the same.
    options: further options of `weft.load`, such as threads; precision is "strict" by default, so that the tokens of a
        request do not depend on others.
    """

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        device: DeviceOption = "auto",
        *,
        max_length: int | None = None,
        memory_limit: int | str | None = None,
        variant: str | None = None,
        max_batch: int = 64,
        chunk: int = 512,
        speculate: bool = True,
        draft: str | PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self.folder = open_folder(DEMO_MODEL if path is None else path, variant)
        options.setdefault("precision", "strict")  # a row has the same bits whatever other rows there are
        is_default_length = max_length is None
        if is_default_length and self.folder.encoder is not None and self.folder.context_length is None:
            max_length = ENCODER_DECODER_LENGTH
        self.max_length = context_limit(self.folder, max_length)
        max_batch = whole_number(max_batch, "max_batch", str(self.folder.path))
        chunk = whole_number(chunk, "chunk", str(self.folder.path))
        limit = None if memory_limit is None else parse_bytes(memory_limit)
        self._sources: SourceReader | None = None
        self._model, self._decoder = self._open_decoder(device, limit, max_batch, chunk, is_default_length, options)
        self._sampler = Sampler(self._decoder.vocabulary, self._model.device)
        self._chunk = chunk
        drafting = None if draft is None else self._open_draft(draft, options)
        self._engine = Engine(
            self._decoder, self._sampler, max_rows=max_batch, chunk=chunk, speculate=speculate, draft=drafting
        )
        if isinstance(self._decoder, PagedDecoder):
            row = SampledRow(GenerationOptions.merge(self.folder.defaults), 0, [], 0)
            self._sampler.prepare(row, self._decoder.logits_dtype)

    def _open_decoder(
        self,
        device: DeviceOption,
        limit: int | None,
        max_batch: int,
        chunk: int,
        is_default_length: bool,
        options: Mapping[str, Any],
    ) -> tuple[Model, Decoder]:
        folder = self.folder
        model = load(folder.decoder, device=device, **options)
        if folder.encoder is not None:
            models = EncoderDecoderModels.load(folder, model, device, options)
            self._sources = SourceReader(folder, models.encoder.inputs, lambda: self.tokenizer)
            return model, models.open_decoder(self.max_length, limit, max_batch)
        embedding = None if folder.embedding is None else load(folder.embedding, device=device, **options)
        inputs = DecoderInputs(folder, model, embedding)
        programs = load_programs(inputs, self.folder.context_length or self.max_length)
        if programs is not None:
            self.max_length = check_length(inputs, programs, self.max_length, is_default=is_default_length)
            programs = probe_programs(inputs, programs, self.max_length)
            blocks = choose_blocks(inputs, programs, self.max_length, limit, max_batch, chunk)
            return model, PagedDecoder(inputs, programs, blocks)
        size = inputs.state_bytes(self.max_length)
        weights = model_weights(model) if limit is not None else 0
        sequences = max_batch if limit is None else min(max_batch, (limit - weights) // max(size, 1))
        if sequences < 1:
            problem = f"a sequence of {self.max_length:,} tokens needs {size:,} bytes of cache"
            raise OutOfMemoryError(problem, file=str(folder.path), hint="lower max_length, or raise memory_limit")
        decoder = StateDecoder(inputs, self.max_length, sequences)
        decoder.takes_chunks = takes_chunks(decoder, keeps_bits=inputs.is_strict)
        return model, decoder

    def _open_draft(self, path: str | PathLike[str], options: Mapping[str, Any]) -> DraftModel:
        folder = open_folder(path)
        inputs = DecoderInputs(folder, load(folder.decoder, device=self._model.device, **options))
        if inputs.vocabulary != self._decoder.vocabulary:
            problem = f"the draft has {inputs.vocabulary:,} tokens, and the model {self._decoder.vocabulary:,}"
            raise InputError(problem, file=str(folder.path), hint="use a draft with the same tokenizer")
        programs = load_programs(inputs, folder.context_length or self.max_length)
        if programs is None or not programs.takes_chunks:
            raise UnsupportedModelError("the cache of this draft cannot be paged", file=str(folder.path))
        longest = check_length(inputs, programs, self.max_length, is_default=True)
        blocks = -(-longest // BLOCK_SIZE)
        programs = probe_programs(inputs, programs, longest)
        return DraftModel(PagedDecoder(inputs, programs, blocks), self._sampler)

    # -- generating --------------------------------------------------------------------------------------------------

    def __call__(self, prompt: Prompt | Sequence[Prompt], **options: Any) -> Any:
        """Generate the answer to a prompt: an `Answer`; a list of them for several prompts, or if `n` is passed.

        prompt: a text, or token ids; or a list of these. For speech models: samples from -1 to 1 at the model's rate, a
            float32 array of one axis, or the path of an audio file. Audio longer than a chunk, 30 seconds, is
            transcribed chunk by chunk, and max_new_tokens is for each of them.
        options: see `weft.GenerationOptions`, such as max_new_tokens, temperature, top_p and seed. Speech and
            translation models also take language, such as "en", and Whisper task, "transcribe" or "translate".
        """
        source_options = self._take_source_options(options)
        if self._is_prompt(prompt):
            answers = self._collect(self._start(self._encode(prompt, source_options), self._merge(options)))
            return answers if "n" in options else answers[0]
        prompts = list(prompt) if isinstance(prompt, Sequence) else []
        if not prompts or not all(map(self._is_prompt, prompts)):
            expectation = "a text or a list of token ids" if self._sources is None else self._sources.expectation
            raise InputError(
                f"a prompt is {expectation}, not {short_repr(prompt)}",
                hint="pass the messages of a chat to `chat` or `stream`",
            )
        merged = self._merge(options)
        streams = [self._start(self._encode(part, source_options), merged) for part in prompts]
        groups = [self._collect(group) for group in streams]
        return groups if "n" in options else [group[0] for group in groups]

    def stream(self, prompt: Prompt | Messages, **options: Any) -> AnswerStream:
        """Generate the answer to a prompt, or to the messages of a chat, piece by piece."""
        source_options = self._take_source_options(options)
        merged = self._merge({"n": 1, "num_beams": 1, **options})  # also where the model's defaults are others
        if merged.n > 1 or merged.num_beams > 1:
            hint = "call `streams` with n, or the generator itself with n or num_beams"
            raise InputError("a stream has one answer, and no beams", hint=hint)
        return self._start_any(prompt, source_options, merged)[0]

    def streams(self, prompt: Prompt | Messages, **options: Any) -> list[AnswerStream]:
        """Generate the `n` answers to a prompt, or to the messages of a chat, each piece by piece.

        The prompt is computed once. Each answer goes on until its own stream is cancelled.
        """
        source_options = self._take_source_options(options)
        merged = self._merge({"n": 1, "num_beams": 1, **options})
        return list(self._start_any(prompt, source_options, merged))

    def chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Answer:
        """Generate the answer to the messages of a chat, by the model's chat template.

        messages: a list of mappings such as `{"role": "user", "content": "..."}`.
        tools: functions that the model may call, as JSON schemas.
        template: further variables of the template, such as `{"enable_thinking": False}`.
        """
        tokens = self._encode_chat(messages, {"tools": tools, **(template or {})})
        return self._collect(self._start(tokens, self._merge({**options, "n": 1})))[0]

    async def generate_async(self, prompt: Prompt | Messages, **options: Any) -> Answer:
        """Generate the answer to a prompt or chat without blocking the event loop."""
        return await self.stream(prompt, **options).answer_async()

    def _merge(self, options: Mapping[str, Any]) -> GenerationOptions:
        merged = GenerationOptions.merge(self.folder.defaults, **options)
        self._sampler.check_options(merged)
        return merged

    def _start_any(
        self, prompt: Prompt | Messages, source_options: Mapping[str, Any], options: GenerationOptions
    ) -> Sequence[Stream]:
        """Submit the sequences of a prompt, or of the messages of a chat."""
        if self._is_prompt(prompt):
            return self._start(self._encode(prompt, source_options), options)
        return self._start(self._encode_chat(prompt, {}), options)  # type: ignore[arg-type]

    def _start(self, prompt: list[int] | list[Source], options: GenerationOptions) -> Sequence[Stream]:
        """Submit the sequences of one prompt; those of further chunks of audio follow when they are needed."""
        sources = [part for part in prompt if isinstance(part, Source)]
        if not sources:
            return self._submit(prompt, options)  # type: ignore[arg-type]
        chunks = [Chunk(partial(self._submit_source, source, options)) for source in sources]
        return [AnswerChain(chunks, number) for number in range(options.n)]

    def _submit_source(self, source: Source, options: GenerationOptions) -> list[AnswerStream]:
        """Submit the sequences of a source; tokens that the model must choose first do not count as new ones."""
        start = source.start
        if start.forced and options.is_constrained:
            raise InputError("a constraint needs the language of the audio", hint='pass it, such as language="en"')
        count = options.max_new_tokens or source.max_new_tokens
        if count is not None:
            options = replace(options, max_new_tokens=count + len(start.forced))
        return self._submit(list(start.tokens), options, source)

    def _submit(
        self, tokens: list[int], options: GenerationOptions, source: Source | None = None
    ) -> list[AnswerStream]:
        if options.num_beams > 1:
            return self._start_beam_search(tokens, options, source)
        limit = self._limit(tokens, options)
        skipped = 0 if source is None else len(source.start.forced)
        if source is not None:
            source.capacity = limit
        seed = secrets.randbits(63) if options.seed is None else options.seed
        streams, sequences = [], []
        for number in range(options.n):
            stream = AnswerStream(len(tokens), self._optional_tokenizer, options.stop)
            sequence = TokenSequence(
                list(tokens),
                len(tokens),
                options,
                seed + number,
                limit,
                frozenset(self.folder.end_tokens),
                skip_tokens(stream.put, skipped),
                self._constraints.compile(options) if options.is_constrained else None,
                source=source,
            )
            stream.bind(sequence, self._engine.wake)
            streams.append(stream)
            sequences.append(sequence)
        self._engine.submit(sequences)
        return streams

    def _start_beam_search(
        self, tokens: list[int], options: GenerationOptions, source: Source | None = None
    ) -> list[AnswerStream]:
        check_beam_options(options)
        streams = [AnswerStream(len(tokens), self._optional_tokenizer, options.stop) for _ in range(options.n)]
        limit, ends = self._limit(tokens, options), frozenset(self.folder.end_tokens)
        prompt = TokenSequence(list(tokens), len(tokens), options, 0, limit, ends, lambda _: False, source=source)
        if source is not None:
            source.capacity = limit
            prompt.prompt_length += len(source.start.forced)
        for stream in streams:
            stream.bind(prompt, self._engine.wake)
        self._engine.submit([], BeamSearch(prompt, streams))
        return streams

    def _limit(self, tokens: list[int], options: GenerationOptions) -> int:
        """Return the most tokens of a sequence; InputError if the prompt leaves no room."""
        if not tokens:
            raise InputError("the prompt has no tokens", hint="pass a text that is not empty")
        unknown = next((token for token in tokens if not 0 <= token < self._decoder.vocabulary), None)
        if unknown is not None:
            problem = f"token {unknown} is not one of the {self._decoder.vocabulary:,} of the vocabulary"
            raise InputError(problem, file=str(self.folder.path))
        if len(tokens) >= self.max_length:
            problem = f"the prompt has {len(tokens):,} tokens, and max_length is {self.max_length:,}"
            context = self.folder.context_length
            has_room = context is not None and context > self.max_length
            hint = f"shorten it, or pass a larger max_length, up to {context:,}" if has_room else "shorten it"
            raise InputError(problem, file=str(self.folder.path), hint=hint)
        count = options.max_new_tokens
        return self.max_length if count is None else min(self.max_length, len(tokens) + count)

    def _collect(self, streams: Sequence[Stream]) -> list[Answer]:
        try:
            return [stream.answer() for stream in streams]
        except BaseException:
            for stream in streams:
                stream.cancel()
            raise

    # -- text --------------------------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder."""
        return Tokenizer.open(self.folder.path)

    @cached_property
    def _optional_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, None for a folder without one, whose prompts are token ids."""
        try:
            return self.tokenizer
        except (MissingFileError, MissingPackageError, UnsupportedModelError):
            return None

    @cached_property
    def _constraints(self) -> ConstraintCompiler:
        text = (self.folder.path / "tokenizer.json").read_text(encoding="utf-8")
        return ConstraintCompiler(text, self._decoder.vocabulary, self.folder.end_tokens)

    def _is_prompt(self, prompt: object) -> bool:
        return _is_prompt(prompt) if self._sources is None else self._sources.is_prompt(prompt)

    def _take_source_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Remove the options that say how the answer of an encoder–decoder begins."""
        names = () if self._sources is None else ("language", "task")
        return {name: options.pop(name) for name in names if name in options}

    def _encode(self, prompt: Any, source_options: Mapping[str, Any]) -> list[int] | list[Source]:
        if self._sources is not None:
            return self._sources.read(prompt, **source_options)
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else read_tokens(prompt)

    def _encode_chat(self, messages: Messages, variables: Mapping[str, Any]) -> list[int]:
        if self._sources is not None:
            problem = f"{self.folder.name} is an encoder–decoder, which does not chat"
            hint = f"call the generator with {self._sources.expectation}"
            raise UnsupportedModelError(problem, file=str(self.folder.path), hint=hint)
        return self.tokenizer.encode(self.tokenizer.chat(messages, **variables), special=False)

    # -- facts -------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        """The device that the model runs on."""
        return self._model.device

    @property
    def takes_text(self) -> bool:
        """Whether prompts can be texts: models of speech read audio instead."""
        return self._sources is None or self._sources.takes_text

    @property
    def max_batch(self) -> int:
        """The most sequences that run at once."""
        return self._engine.max_rows

    @property
    def vocabulary(self) -> int:
        """The number of logits: token ids are below it."""
        return self._decoder.vocabulary

    @property
    def statistics(self) -> EngineStatistics:
        """Counts of tokens and steps so far, and of the sequences that run and wait now."""
        return self._engine.statistics()

    def memory(self) -> GenerationMemory:
        """Return the memory that generation needs: weights, cache, and the largest step."""
        return compute_memory(self._model, self._decoder, self._engine.max_rows, self._chunk, self.max_length)

    def __repr__(self) -> str:
        return f"<weft.Generator: {self.folder.name} on {self.device}, up to {self.max_length:,} tokens>"

    def __reduce__(self) -> NoReturn:
        raise ExecutionError("a generator cannot be pickled or copied", hint="make one in each process")

    def close(self) -> None:
        """Cancel all answers and free the cache."""
        self._engine.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _is_prompt(prompt: object) -> TypeGuard[Prompt]:
    if isinstance(prompt, (str, np.ndarray)):
        return isinstance(prompt, str) or (prompt.ndim == 1 and prompt.size > 0)
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray, memoryview)):
        return False
    return len(prompt) > 0 and not isinstance(prompt[0], (str, Mapping, Sequence, np.ndarray))


def read_tokens(prompt: Iterable[SupportsIndex]) -> list[int]:
    """Return token ids as integers."""
    tokens = []
    for token in prompt:
        try:
            tokens.append(index(token))
        except TypeError:
            problem = f"a prompt has {short_repr(token)} in the place of a token id"
            raise InputError(problem, hint="pass a text, or a list of integers") from None
    return tokens
