"""`Generator`: tokens one by one, as the program asks for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.compat.onnxruntime_genai.beams import BeamSearches
from weft.compat.onnxruntime_genai.errors import convert_errors, unsupported_error
from weft.compat.onnxruntime_genai.model import Model
from weft.compat.onnxruntime_genai.params import GeneratorParams
from weft.compat.onnxruntime_genai.rows import Row, compute, compute_all_logits, to_array
from weft.compat.onnxruntime_genai.tensors import NamedTensors, Tensor
from weft.generation.constraints import Constraint, ConstraintCompiler
from weft.generation.sampler import SampledRow

_NO_STATE = (
    "GenerateNextToken called with no prior state. Please call AppendTokens, SetLogits, or SetInputs before calling "
    "GenerateNextToken."
)


class Generator:
    """Generates the next tokens of the sequences of a batch, with a cache of its own."""

    def __init__(self, model: Model, params: GeneratorParams) -> None:
        params.check()
        self._model = model
        self._options = params.make_options()
        self._max_length = params.integer("max_length")
        self._min_length = params.integer("min_length")
        self._seed = params.make_seed()
        self._vocabulary = model.inputs.vocabulary
        self._end_tokens = frozenset(model.folder.end_tokens)
        self._pad = 0 if model.folder.pad_token is None else model.folder.pad_token
        batch = params.integer("batch_size")
        with convert_errors():
            beams = self._options.num_beams
            # While beams are replaced, the old and the new ones need blocks.
            self._decoder = model.make_decoder(batch * (2 * beams if beams > 1 else 1), self._max_length)
            self._constraints = self._make_compiler() if self._options.is_constrained else None
        self._searches: BeamSearches | None = None
        share = self._decoder.blocks // batch
        self._rows = [Row(list(range(number * share, (number + 1) * share))) for number in range(batch)]
        self._next = np.zeros(batch, np.int32)
        self._logits: Any = None  # of rows that go on
        self._is_terminated = False
        self._is_done = False

    def _make_compiler(self) -> ConstraintCompiler:
        folder = self._model.folder
        text = (folder.path / "tokenizer.json").read_text(encoding="utf-8")
        return ConstraintCompiler(text, self._vocabulary, folder.end_tokens)

    # -- tokens ------------------------------------------------------------------------------------------------------

    def append_tokens(self, tokens: Any) -> None:
        """Add tokens to all sequences, and compute them: a list, or one of each sequence with padding at the end."""
        array = tokens.as_numpy() if isinstance(tokens, Tensor) else np.asarray(tokens)
        array = array.astype(np.int32)
        batch = len(self._rows)
        if array.size == 0:
            raise RuntimeError("input_ids is empty")
        if array.size % batch:
            raise RuntimeError(f"{array.size} tokens cannot be divided among a batch of {batch}")
        array = array.reshape(batch, -1)
        self._check_tokens(array)
        for row, added in zip(self._rows, array.tolist()):
            row.shown += added
            row.tokens += added if batch == 1 else self._strip_padding(added)
            row.is_done = False
            self._start_answer(row)
        self._next = array[:, -1].copy()
        self._is_done = False
        self._logits = None
        if self._options.num_beams > 1:
            self._start_searches()
        else:
            self._compute()

    def _start_searches(self) -> None:
        if self._searches is not None:
            raise unsupported_error("Generator.append_tokens during a beam search", "call rewind_to(0) first")
        limits = [self._max_length - len(row.shown) + len(row.tokens) for row in self._rows]
        prompts = [list(row.tokens) for row in self._rows]
        with convert_errors():
            self._searches = BeamSearches(
                self._decoder, self._model.sampler, self._options, prompts, limits, self._end_tokens
            )

    def append_token_sequences(self, sequences: Any) -> None:
        """Add token sequences, one for each row of the batch, of any lengths."""
        rows = [np.asarray(sequence, np.int32).ravel() for sequence in sequences]
        batch = np.full((len(rows), max(map(len, rows), default=0)), self._pad, np.int32)
        for target, row in zip(batch, rows):
            target[: len(row)] = row
        self.append_tokens(batch)

    def _check_tokens(self, array: NDArray[np.int32]) -> None:
        length = self.token_count()
        if array.shape[1] + length > self._max_length:
            sizes = f"input_ids size ({array.shape[1]}) + current sequence length ({length})"
            raise RuntimeError(f"{sizes} exceeds max length ({self._max_length})")
        unknown = array[(array < 0) | (array >= self._vocabulary)]
        if unknown.size:
            raise RuntimeError(f"token {unknown[0]} is not one of the {self._vocabulary:,} of the vocabulary")

    def _strip_padding(self, tokens: list[int]) -> list[int]:
        """Return tokens without padding at their end; padding alone keeps its first token."""
        end = len(tokens)
        while end > 1 and tokens[end - 1] == self._pad:
            end -= 1
        return tokens[:end]

    def _start_answer(self, row: Row) -> None:
        if row.sampled is None:
            seed = self._seed + self._rows.index(row)
            row.sampled = SampledRow(self._options, seed, row.tokens, len(row.tokens))
        if self._constraints is not None:
            with convert_errors():
                row.constraint = self._constraints.compile(self._options)

    def generate_next_token(self) -> None:
        """Choose the next token of each sequence and append it."""
        if not self._rows[0].tokens:
            raise RuntimeError(_NO_STATE)
        if self.token_count() >= self._max_length:
            problem = f"GenerateNextToken called with sequence length already at max_length ({self._max_length})"
            raise RuntimeError(problem)
        if self._searches is not None:
            with convert_errors():
                self._is_done = self._is_done or self._searches.step()
            return
        active = self._active_rows()
        if not active:
            self._next = np.full(len(self._rows), self._pad, np.int32)
            return
        if self._logits is None:
            self._compute()
        rows = [self._prepare_row(row) for row in active]
        with convert_errors():
            padding = self._logits.shape[0] - len(rows)
            choices = self._model.sampler.choose(self._logits, rows + rows[-1:] * padding).tokens
        self._logits = None
        self._append_choices(active, [int(token) for token in choices[: len(active)]])

    def _active_rows(self) -> list[Row]:
        return [row for row in self._rows if not row.is_done]

    def _compute(self) -> None:
        if self._is_terminated:
            raise RuntimeError("the session is terminated")
        with convert_errors():
            self._logits = compute(self._decoder, self._active_rows())

    def _prepare_row(self, row: Row) -> SampledRow:
        """Set the tokens that a sequence may choose next."""
        assert row.sampled is not None
        allowed = None
        if row.constraint is not None:
            allowed = self._end_mask() if row.constraint.is_finished else row.constraint.mask()
        if len(row.shown) < self._min_length:
            others = ~self._end_mask()
            allowed = others if allowed is None else allowed & others
        row.sampled.allowed = allowed
        return row.sampled

    def _end_mask(self) -> NDArray[np.uint32]:
        bits = np.zeros((self._vocabulary + 31) // 32, np.uint32)
        for token in self._end_tokens:
            bits[token // 32] |= np.uint32(1 << token % 32)
        return bits

    def _append_choices(self, active: list[Row], tokens: list[int]) -> None:
        if min(tokens) < 0:
            raise RuntimeError("no token can be chosen: all are excluded, or the logits are not numbers")
        chosen = dict(zip(map(id, active), tokens))
        self._next = np.array([chosen.get(id(row), self._pad) for row in self._rows], np.int32)
        for row, token in zip(active, tokens):
            row.is_done = token in self._end_tokens
            if not row.is_done:
                row.tokens.append(token)
                if row.constraint is not None and not row.constraint.is_finished:
                    row.constraint.accept(token)
        if all(row.is_done for row in self._rows):  # the last end token is not part of the sequences
            self._is_done = True
            return
        for row, token in zip(self._rows, self._next.tolist()):
            row.shown.append(token)
        self._is_done = self.token_count() >= self._max_length

    def rewind_to(self, length: int) -> None:
        """Drop the tokens from position `length` on; 0 starts all sequences of a batch anew."""
        if length < 0 or length > self.token_count():
            raise RuntimeError("Cannot rewind to a length greater than the current sequence length")
        if length and self._searches is not None:
            raise unsupported_error("Generator.rewind_to during a beam search", "rewind to 0")
        if length and len(self._rows) > 1:
            raise RuntimeError("RewindToLength must be called with new_length=0 when batch_size > 1")
        for row in self._rows:
            dropped = len(row.tokens) - length
            del row.tokens[length:], row.shown[length:]
            row.is_done = False
            # The logits after the last token are needed again, so it is computed again.
            row.computed = max(min(row.computed, length - 1), 0)
            if not row.computed:
                self._decoder.forget(row)
            if row.sampled is not None:
                row.sampled.rollback(length)
            self._rewind_constraint(row, dropped)
            if not length:
                row.sampled = None
        self._is_done = False
        self._logits = None
        self._searches = None

    def _rewind_constraint(self, row: Row, dropped: int) -> None:
        """Take back the tokens of an answer; a constraint starts anew where the prompt is shortened."""
        if row.constraint is None or not dropped:
            return
        with convert_errors():
            constraint = self._constraints and self._constraints.compile(self._options)
            assert row.sampled is not None and isinstance(constraint, Constraint)
            for token in row.tokens[row.sampled.prompt_length :]:
                constraint.accept(token)
            row.constraint = constraint

    # -- results -----------------------------------------------------------------------------------------------------

    def is_done(self) -> bool:
        return self._is_done

    def token_count(self) -> int:
        return len(self._rows[0].shown)

    def get_next_tokens(self) -> NDArray[np.int32]:
        tokens: NDArray[np.int32] = self._next.copy()
        return tokens

    def get_sequence(self, index: int) -> NDArray[np.int32]:
        count = len(self._rows) if self._searches is None else self._searches.count
        if not 0 <= index < count:
            raise RuntimeError(f"there is no sequence {index}: there are {count}")
        if self._searches is not None:
            prompt = self._rows[index // self._options.n].shown
            return np.array(prompt + self._searches.answer(index), np.int32)
        return np.array(self._rows[index].shown, np.int32)

    def get_logits(self) -> NDArray[np.float32]:
        """Return the logits that the next tokens are chosen from, [batch, 1, vocabulary]."""
        if self._searches is not None:
            raise unsupported_error("Generator.get_logits during a beam search", "leave out num_beams")
        result = np.zeros((len(self._rows), 1, self._vocabulary), np.float32)
        active = [number for number, row in enumerate(self._rows) if not row.is_done]
        if not self._rows[0].tokens or not active:
            return result
        if self._logits is None:
            self._compute()
        result[active, 0] = to_array(self._logits)[: len(active)]
        return result

    def set_logits(self, logits: Any) -> None:
        """Replace the logits that the next tokens are chosen from."""
        array = np.asarray(logits, np.float32)
        if self._logits is None:
            problem = "logits are not computed yet. Please call GenerateNextToken or AppendTokens before calling"
            raise RuntimeError(f"{problem} SetLogits.")
        size = len(self._rows) * self._vocabulary
        if array.size != size:
            problem = f"Generator::SetLogits passed an array of size {array.size} but should be size {size}"
            raise RuntimeError(problem)
        active = [number for number, row in enumerate(self._rows) if not row.is_done]
        self._logits = np.ascontiguousarray(array.reshape(len(self._rows), self._vocabulary)[active])

    def get_output(self, name: str) -> NDArray[Any]:
        """Return the logits of all tokens of the last run; other outputs of the model stay on its device."""
        if name != self._model.folder.names.logits:
            if name in {pair.output for pair in self._model.inputs.pairs}:
                raise unsupported_error(
                    f"Generator.get_output({name!r})", "keys and values are in blocks of weft's cache"
                )
            raise RuntimeError(f"Generator output '{name}' was not found.")
        if self._logits is None and self._rows[0].tokens and self._active_rows():
            self._compute()
        with convert_errors():
            parts = [compute_all_logits(self._decoder, row) for row in self._rows if row.tokens]
        if not parts:
            raise RuntimeError(f"Generator output '{name}' was not found.")
        result = np.zeros((len(self._rows), max(map(len, parts)), self._vocabulary), parts[0].dtype)
        for target, part in zip(result, parts):
            target[: len(part)] = part
        return result

    def get_input(self, name: str) -> NDArray[Any]:
        """Return the token ids or the attention mask of the last run."""
        names = self._model.folder.names
        spans = [row.tokens[slice(*row.last)] for row in self._rows]
        if name == names.ids and spans[0]:
            result = np.full((len(spans), max(map(len, spans))), self._pad, np.int64)
            for target, span in zip(result, spans):
                target[: len(span)] = span
            return result
        if name == names.mask and spans[0]:
            ends = np.array([row.last[1] for row in self._rows])
            return (np.arange(ends.max())[None] < ends[:, None]).astype(np.int64)
        raise RuntimeError(f"Generator input '{name}' was not found.")

    # -- other calls -------------------------------------------------------------------------------------------------

    def set_runtime_option(self, key: str, value: str) -> None:
        """Set `terminate_session` to "1", so that steps fail from now on, or to "0"."""
        if key != "terminate_session":
            raise RuntimeError(f"SetRuntimeOption key is not recognized: {key}")
        self._is_terminated = value == "1"

    def set_inputs(self, inputs: NamedTensors) -> None:  # noqa: ARG002
        name = self._model.type
        raise RuntimeError(
            f"Please use generator.AppendTokens for {name}. SetInputs is not supported for this model type."
        )

    def set_model_input(self, name: str, value: Any) -> None:  # noqa: ARG002
        raise unsupported_error("Generator.set_model_input", f"weft makes the input {name!r} from the tokens")

    def set_hidden_states(self, states: Any) -> None:  # noqa: ARG002
        raise unsupported_error("Generator.set_hidden_states", "append tokens")

    def snapshot_state(self) -> None:
        """Do nothing: `rewind_to` works at every length."""

    def set_active_adapter(self, adapters: Any, name: str) -> None:  # noqa: ARG002
        raise unsupported_error("Generator.set_active_adapter", "merge adapters into the model's weights")

    def get_speculative_stats(self) -> dict[str, Any]:
        return {}
