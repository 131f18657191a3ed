"""`EncoderDecoder`: steps of models whose decoder reads the states of an encoder (T5, Whisper, Moonshine).

The encoder runs once for a request. In folders of optimum, the first step of a sequence runs the decoder without a
past, which also computes the keys and values of the encoder's states. In those of onnxruntime-genai, the encoder
computes them, and all steps have a past. They stay on the device, for all sequences of the request. Later steps run
with a `weft.State` for each sequence, which holds its own keys and values in place. A block of the cache holds a
sequence, so that beams copy blocks as in other decoders. Sequences run one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import OutOfMemoryError, UnsupportedModelError
from weft.generation.decoder import Decoder, Step
from weft.generation.model_folder import ModelFolder
from weft.generation.sources import MASK_NAMES, Source
from weft.ir.compiled import CompiledProgram
from weft.ir.tensors import DeviceTensor
from weft.loading import load
from weft.plan.program import weight_bytes
from weft.records import dataclass
from weft.runtime.memory import Memory
from weft.runtime.state import State
from weft.runtime.state_pairs import list_output_names

if TYPE_CHECKING:
    from weft.ir.specs import TensorSpec
    from weft.runtime.model import Model
    from weft.runtime.policy import DeviceOption

DEFAULT_LENGTH = 512  # of the answers of models with relative positions, which have no context
MASKS = ("attention_mask", "decoder_attention_mask")
POSITIONS = ("position_ids", "cache_position")


@dataclass(frozen=True, slots=True)
class EncoderDecoderModels:
    """The models of a folder: the encoder, and the decoders of the first and of later steps.

    A merged decoder is both, and so is one that does not read the encoder's states. Without a decoder of later steps,
    which takes a past, each step computes all tokens.
    """

    folder: ModelFolder
    encoder: Model
    first: Model
    second: Model | None

    @classmethod
    def load(
        cls, folder: ModelFolder, decoder: Model, device: DeviceOption, options: Mapping[str, Any]
    ) -> EncoderDecoderModels:
        """Load the models besides the decoder."""
        if folder.embedding is not None or folder.encoder is None:
            hint = "export with optimum, or run its parts with weft.load"
            problem = "encoder–decoders with a model for embeddings are not supported"
            raise UnsupportedModelError(problem, file=str(folder.path), hint=hint)
        encoder = load(folder.encoder, device=device, **options)
        second = None if folder.decoder_with_past is None else load(folder.decoder_with_past, device=device, **options)
        inputs = {spec.name for spec in decoder.inputs}
        if folder.names.cache_branch in inputs or folder.names.encoder_states not in inputs:
            second = decoder
        return cls(folder, encoder, decoder, second)

    def weight_bytes(self) -> int:
        """Return the bytes of the constants of all models."""
        models = {id(model): model for model in (self.encoder, self.first, self.second) if model is not None}
        programs = [model.session().whole.program for model in models.values()]
        return sum(weight_bytes(program) for program in programs if isinstance(program, CompiledProgram))

    def open_decoder(self, max_length: int, limit: int | None, max_batch: int) -> EncoderDecoder:
        """Open a decoder for as many sequences as a limit of bytes permits."""
        weights = self.weight_bytes()
        decoder = EncoderDecoder(self.folder, self.encoder, self.first, self.second, max_length, max_batch, weights)
        if limit is not None:
            size = decoder.sequence_bytes(max_length)
            decoder.blocks = min(max_batch, (limit - weights) // max(size, 1))
            decoder.cache_bytes = decoder.blocks * size
            if decoder.blocks < 1:
                problem = f"a sequence of {max_length:,} tokens needs {size:,} bytes of cache"
                raise OutOfMemoryError(
                    problem, file=str(self.folder.path), hint="lower max_length, or raise memory_limit"
                )
        return decoder


class EncoderDecoder(Decoder):
    """The decoder of an encoder–decoder. Steps carry a sequence with its `source`."""

    def __init__(
        self,
        folder: ModelFolder,
        encoder: Model,
        first: Model,
        second: Model | None,
        max_length: int,
        sequences: int,
        weights: int,
    ) -> None:
        """`first` computes the first step, `second` all others; one merged decoder can be both, and None is neither.

        weights: bytes of all models.
        """
        self._weights = weights
        self._names = folder.names
        self._encoder = encoder
        self._first = first
        self._second = second
        self.block_size = max_length
        self.blocks = sequences
        self._first_inputs = {spec.name: spec for spec in first.inputs}
        self._second_inputs = {} if second is None else {spec.name: spec for spec in second.inputs}
        self._has_first_step = self._names.encoder_states in self._first_inputs
        self._self_pairs, self._cross_pairs = self._pair_caches()
        self._check_inputs()
        self.vocabulary = self._find_vocabulary(folder)
        self.cache_bytes = sequences * self.sequence_bytes(max_length)
        self._states: dict[int, State] = {}  # by block

    # -- the parts of the models -------------------------------------------------------------------------------------

    def _pair_caches(self) -> tuple[dict[str, str], dict[str, str]]:
        """Pair the past inputs of later steps with outputs: those of the tokens, and those of the encoder's states."""
        own: dict[str, str] = {}
        cross: dict[str, str] = {}
        first_outputs = {spec.name for model in (self._first, self._encoder) for spec in model.outputs}
        later_outputs = set() if self._second is None else {spec.name for spec in self._second.outputs}
        cross_inputs = _compile_patterns(self._names.cross_past_key, self._names.cross_past_value)
        for name in self._second_inputs:
            if not name.startswith("past"):
                continue
            output = next((output for output in list_output_names(name) if output in first_outputs), None)
            is_cross = any(pattern.fullmatch(name) for pattern in cross_inputs)
            if output is None or not (is_cross or output in later_outputs):
                problem = f"no output of the decoder is the next {name}"
                raise UnsupportedModelError(problem, file=self._first.file, hint="export encoder and decoder again")
            (cross if is_cross else own)[name] = output
        if self._second is not None and not own:
            problem = "the decoder of later steps has no cache"
            raise UnsupportedModelError(problem, file=self._second.file, hint="export encoder and decoder again")
        return own, cross

    def _check_inputs(self) -> None:
        names = self._names
        known_names = {names.ids, names.encoder_states, names.encoder_mask, names.cache_branch, *MASKS, *POSITIONS}
        known_names |= self._self_pairs.keys() | self._cross_pairs.keys()
        for model, inputs in ((self._first, self._first_inputs), (self._second, self._second_inputs)):
            unknown = [name for name in inputs if name not in known_names]
            if model is not None and (unknown or names.ids not in inputs):
                missing = ", ".join(unknown) or "token ids"
                hint = "export it with optimum: encoder_model.onnx, decoder_model.onnx, decoder_with_past_model.onnx"
                raise UnsupportedModelError(f"weft does not know what to pass as {missing}", file=model.file, hint=hint)

    def _find_vocabulary(self, folder: ModelFolder) -> int:
        outputs = {spec.name: spec for spec in self._first.outputs}
        if self._names.logits not in outputs:
            problem = f"the decoder has no output {self._names.logits!r}"
            raise UnsupportedModelError(problem, file=self._first.file, hint=f"it has {', '.join(list(outputs)[:6])}")
        shape = outputs[self._names.logits].shape
        size = shape[-1] if shape else None
        vocabulary = size if isinstance(size, int) else folder.vocabulary
        if vocabulary is None:
            hint = 'state "vocab_size" in config.json'
            raise UnsupportedModelError("the size of the vocabulary is not known", file=self._first.file, hint=hint)
        return vocabulary

    def sequence_bytes(self, length: int) -> int:
        """Return the bytes of a sequence's own keys and values."""
        total = 0
        for name in self._self_pairs:
            spec = self._second_inputs[name]
            sizes = [1 if axis == 0 else length if isinstance(size, str) else size for axis, size in _dims(spec)]
            total += int(np.prod(sizes)) * (4 if spec.dtype is None else np.dtype(spec.dtype).itemsize)
        return total

    # -- steps -------------------------------------------------------------------------------------------------------

    def run(self, steps: Sequence[Step], tokens: DeviceTensor | None = None) -> Any:  # noqa: ARG002
        results = [self._run_step(step) for step in steps]
        return results[0] if len(results) == 1 else np.concatenate(results)

    def _run_step(self, step: Step) -> NDArray[Any]:
        source: Source = step.sequence.source
        block = step.blocks[0]
        if source.states is None:
            source.states = self._encode(source)
        if self._second is None:  # without a cache all tokens are computed again
            tokens = list(step.sequence.tokens[: step.past + len(step.tokens)])
            logits = self._run_first(tokens, source, None)
        elif not step.past and self._has_first_step:
            logits = self._run_first(list(step.tokens), source, block)
        else:
            if not step.past:
                self._states[block] = self._new_state(source, len(step.tokens))
            logits = self._run_later(self._second, step, source, self._states[block])
        rows = logits[0, -step.selected :]
        if source.start.is_plain:
            return np.ascontiguousarray(rows)
        end = step.past + len(step.tokens)
        return np.stack([source.start.restrict(row, end - len(rows) + n + 1) for n, row in enumerate(rows)])

    def _encode(self, source: Source) -> Any:
        inputs: dict[str, Any] = dict(source.inputs)
        for spec in self._encoder.inputs:
            if spec.name in MASK_NAMES:
                inputs[spec.name] = np.ones((1, source.length), spec.dtype)
        name = "last_hidden_state"
        names = [spec.name for spec in self._encoder.outputs]
        results = self._encoder.run(inputs, keep=True)
        source.cross.update({name: results[output] for name, output in self._cross_pairs.items() if output in names})
        return results[name if name in names else names[0]]

    def _run_first(self, tokens: list[int], source: Source, block: int | None) -> NDArray[Any]:
        """Run a sequence without a past; keep the keys and values if it has a block."""
        feeds = self._feeds(self._first_inputs, tokens, 0, source)
        for name in self._first_inputs.keys() & (self._self_pairs.keys() | self._cross_pairs.keys()):
            spec = self._first_inputs[name]  # of a merged decoder, which does not read it
            feeds[name] = np.zeros([1 if isinstance(size, str) else size for _, size in _dims(spec)], spec.dtype)
        presents = [*self._self_pairs.values(), *self._cross_pairs.values()] if block is not None else []
        results = self._first.run(feeds, keep=presents)
        if block is not None:
            if not source.cross:
                source.cross.update({name: results[output] for name, output in self._cross_pairs.items()})
            state = self._states[block] = self._new_state(source, len(tokens))
            state.fill({name: results[output] for name, output in self._self_pairs.items()})
        return _to_array(results[self._names.logits])

    def _new_state(self, source: Source, tokens: int) -> State:
        assert self._second is not None
        return self._second.state(capacity=max(source.capacity, tokens), pairs=self._self_pairs)

    def _run_later(self, model: Model, step: Step, source: Source, state: State) -> NDArray[Any]:
        feeds = self._feeds(self._second_inputs, list(step.tokens), step.past, source) | source.cross
        results = model.run(feeds, outputs=[self._names.logits], state=state)
        return _to_array(results[self._names.logits])

    def _feeds(self, specs: Mapping[str, TensorSpec], tokens: list[int], past: int, source: Source) -> dict[str, Any]:
        """Return the inputs of a step besides caches."""
        names, count = self._names, len(tokens)
        feeds: dict[str, Any] = {}
        for name, spec in specs.items():
            if name == names.ids:
                feeds[name] = np.array([tokens], spec.dtype)
            elif name == names.encoder_states:
                feeds[name] = source.states
            elif name == names.encoder_mask:
                feeds[name] = np.ones((1, source.states.shape[1]), spec.dtype)
            elif name == names.cache_branch:
                feeds[name] = np.array([past > 0])
            elif name in MASKS:
                feeds[name] = np.ones((1, past + count), spec.dtype)
            elif name in POSITIONS:
                positions = np.arange(past, past + count, dtype=spec.dtype)
                feeds[name] = positions[None] if len(spec.shape or ()) == 2 else positions
        return feeds

    # -- memory ------------------------------------------------------------------------------------------------------

    def memory(self, rows: int, tokens: int, past: int) -> Memory | None:  # noqa: ARG002
        """Return the weights of all models; what a step needs depends on the length of the source."""
        weights = self._weights
        return Memory(weights, 0, 0, 0, 0, weights, 0, 0, {}, (), ()) if weights else None

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the states of sequences."""
        for source, target in zip(sources, targets):
            if source in self._states:
                self._states[target] = self._states[source].copy()

    def forget(self, sequence: Any) -> None:
        for block in sequence.blocks:
            self._states.pop(block, None)


def _compile_patterns(*names: str | None) -> list[re.Pattern[str]]:
    """Compile names in which `%d` is the number of a layer."""
    return [re.compile(re.escape(name).replace("%d", r"\d+")) for name in names if name is not None]


def _dims(spec: TensorSpec) -> list[tuple[int, int | str]]:
    return list(enumerate(spec.shape or ()))


def _to_array(tensor: Any) -> NDArray[Any]:
    array: NDArray[Any] = tensor.numpy() if isinstance(tensor, DeviceTensor) else tensor
    return array
