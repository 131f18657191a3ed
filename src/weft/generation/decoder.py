"""`Decoder`: runs steps of a language model on its device, over a cache that sequences share.

A step takes the next tokens of one or more sequences and returns the logits after the last of them. `PagedDecoder`
keeps all keys and values in pools of blocks; `StateDecoder` serves models whose cache cannot be paged, with a state for
each sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.sizes import GuardError
from weft.backends.resident.tensor import ResidentTensor
from weft.errors import InputError, UnsupportedModelError
from weft.generation.block_copies import BlockCopier
from weft.generation.model_folder import ModelFolder
from weft.ir.state import StatePair
from weft.ir.tensors import DeviceTensor
from weft.passes.page_state import BLOCKS, STARTS, TABLE
from weft.passes.select_rows import SELECTION
from weft.records import dataclass
from weft.runtime.arguments import whole_number
from weft.runtime.memory import Memory, summarize
from weft.runtime.paged_program import PagedForm, load_paged_program
from weft.runtime.state import State
from weft.runtime.state_pairs import list_output_names

if TYPE_CHECKING:
    from weft.backends.device import Executable
    from weft.runtime.model import Model

BLOCK_SIZE = 16
POSITION_KINDS = 3  # time, height and width in M-RoPE, which are equal in a text
DEFAULT_LENGTH = 4096  # of a sequence
KEY_STEP = 16  # the number of keys of a decode step is rounded up to a multiple, so that plans repeat
DEVICE_KEY_STEP = 256  # on devices with their own memory, which replay what they recorded for the same sizes


@dataclass(frozen=True, slots=True)
class Step:
    """The next tokens of one sequence.

    tokens: to compute.
    past: the number of tokens of the sequence before them.
    blocks: of the sequence, with room for all its tokens.
    selected: the number of tokens, from the last one back, whose logits are wanted.
    sequence: identifies the sequence to decoders that keep a state for each.
    length: the number of all tokens of the sequence, which decides its phase; 0 if these tokens are the last.
    """

    tokens: Sequence[int]
    past: int
    blocks: Sequence[int]
    selected: int = 1
    sequence: Any = None
    length: int = 0


class Decoder(ABC):
    """Steps of one model. One thread at a time uses it."""

    block_size: int
    blocks: int
    shares_prefixes = False  # whether sequences can share blocks
    takes_chunks = False  # whether several tokens can follow others
    runs_ahead = False  # whether `run` takes tokens that the device has yet to choose, and does not wait for the logits
    pads_chunks = False  # whether chunks of several sequences run together whatever their lengths and pasts
    goes_back = True  # whether the last tokens of a sequence can be replaced
    phase_ends: Sequence[int] = ()  # the longest sequences of all phases but the last, see `find_phase`
    vocabulary: int
    cache_bytes: int  # of all blocks

    @abstractmethod
    def run(self, steps: Sequence[Step], tokens: DeviceTensor | None = None) -> Any:
        """Run steps together; return logits [selected tokens of all steps, vocabulary] on the device.

        Steps have equally many tokens and pasts, unless all of them have one token or the decoder `pads_chunks`. They
        select equally many. There may be more rows of logits than steps, as padding.

        tokens: instead of the tokens of the steps, one for each row of logits; only where the decoder `runs_ahead`.
        """

    @abstractmethod
    def memory(self, rows: int, tokens: int, past: int) -> Memory | None:
        """Compute the memory of a run besides the cache; None where there is no plan."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the contents of blocks."""
        raise NotImplementedError

    def find_phase(self, length: int) -> int:
        """Return the phase of a sequence, 0 for the shortest ones.

        Models with LongRoPE compute all tokens of a long sequence with other angles than those of a short one. A
        sequence that grows into the next phase is computed again, and does not share blocks with those of other phases.
        """
        return bisect_left(self.phase_ends, length)

    def forget(self, sequence: Any) -> None:  # noqa: B027
        """Release what is kept for a sequence, by its `blocks`."""


class PagedDecoder(Decoder):
    """A decoder whose keys and values are in pools of blocks."""

    def __init__(self, inputs: DecoderInputs, programs: PagedPrograms, blocks: int) -> None:
        self._inputs = inputs
        self._programs = programs
        self.block_size = BLOCK_SIZE
        self.blocks = blocks
        self.takes_chunks = self.shares_prefixes = programs.takes_chunks
        self.vocabulary = inputs.vocabulary
        self.logits_dtype = programs.prompts.program.outputs[0].dtype.numpy
        self._driver = inputs.model.session().driver
        shapes = programs.pool_shapes(blocks)
        self.cache_bytes = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in shapes.values())
        self._pools: dict[str, Any] = {}
        for name, (shape, dtype) in shapes.items():
            pool = np.zeros(shape, dtype)
            self._pools[name] = self._driver.place(pool) if self._driver.has_memory else pool
        self._copier: BlockCopier | None = None
        self._key_step = DEVICE_KEY_STEP if self._driver.has_memory else KEY_STEP
        self._takes_padding, self.pads_chunks = programs.takes_padding, programs.pads_chunks
        self.phase_ends = programs.phase_ends
        self.runs_ahead = (
            self._driver.has_memory and self._takes_padding and inputs.takes_chosen_tokens and not self.phase_ends
        )

    def run(self, steps: Sequence[Step], tokens: DeviceTensor | None = None) -> Any:
        is_chunk = any(len(step.tokens) > 1 for step in steps)
        groups: dict[tuple[int, int, int], list[int]] = {}  # indices of steps that run together
        for index, step in enumerate(steps):
            past = 0 if is_chunk or self._takes_padding else step.past
            number = 0 if self._programs.takes_rows else index
            groups.setdefault((self._step_phase(step), past, number), []).append(index)
        if len(groups) == 1:
            return self._run_group(steps, is_chunk, tokens)
        selected = steps[0].selected
        logits: NDArray[Any] | None = None
        for indices in groups.values():
            group = np.asarray(self._run_group([steps[index] for index in indices], is_chunk))
            group = group[: len(indices) * selected].reshape(len(indices), selected, -1)
            logits = np.empty((len(steps), *group.shape[1:]), group.dtype) if logits is None else logits
            logits[indices] = group
        assert logits is not None
        return logits.reshape(len(steps) * selected, -1)

    def _step_phase(self, step: Step) -> int:
        return self.find_phase(step.length or step.past + len(step.tokens))

    def _run_group(self, steps: Sequence[Step], is_chunk: bool, tokens: DeviceTensor | None = None) -> Any:
        """Run steps of one phase together."""
        if is_chunk or not self._takes_padding:
            return self.run_rows(steps, len(steps))
        past = max(step.past for step in steps)
        rows = _round_rows(len(steps)) if self._driver.has_memory else len(steps)
        return self.run_rows(steps, rows, past + -(past + 1) % self._key_step, tokens)

    def run_rows(
        self, steps: Sequence[Step], rows: int, past: int | None = None, tokens: DeviceTensor | None = None
    ) -> Any:
        """Run steps as one batch with padding up to a number of rows and of past tokens (default: the most)."""
        past = max(step.past for step in steps) if past is None else past
        count = max(len(step.tokens) for step in steps)
        if self.phase_ends:
            phase = self._step_phase(steps[0])
            past = min(past, (*self.phase_ends, past + count)[phase] - count)
            past = max(past, (0, *self.phase_ends)[phase] + 1 - count)
        total = past + count
        executable = self._programs.choose(count, past)
        feeds = dict(self._pools)
        feeds.update(self._inputs.feeds(steps, rows, total, executable.input_names))
        if tokens is not None:
            assert isinstance(tokens, ResidentTensor) and self._inputs.ids is not None
            feeds[self._inputs.ids] = tokens.reshape((rows, 1))
        width = -(-total // self.block_size)
        table = np.full((rows, width), self.blocks, np.int64)  # what is not a block is not written
        starts = np.zeros(rows, np.int64)
        selected = steps[0].selected
        selection = np.zeros((rows, selected), np.int64)
        for row, step in enumerate(steps):
            blocks = step.blocks[:width]
            table[row, : len(blocks)] = blocks
            starts[row] = step.past
            selection[row] = range(len(step.tokens) - selected, len(step.tokens))
        feeds[TABLE], feeds[STARTS], feeds[SELECTION] = table, starts, selection
        keep = (0,) if self._driver.has_memory else ()
        arguments = [feeds[name] for name in executable.input_names]
        return executable.run(arguments, keep, self._programs.hidden_sizes(past, total))[0]

    def memory(self, rows: int, tokens: int, past: int) -> Memory | None:
        sizes = self._programs.run_sizes(self._inputs, rows, tokens, past, self.blocks)
        plan = self._programs.choose(tokens, past).plan(sizes)
        return None if plan is None else summarize(plan, sizes, ())

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks in all pools."""
        if not self._driver.has_memory:
            for pool in self._pools.values():
                pool[list(targets)] = pool[list(sources)]
            return
        if self._copier is None:
            pipeline = self._inputs.model.session().pipeline
            self._copier = BlockCopier(pipeline, self._programs.pool_shapes(self.blocks))
        self._copier.copy(list(self._pools.values()), sources, targets)


class StateDecoder(Decoder):
    """A decoder with a `weft.State` for each sequence, which therefore run one by one; a block holds a sequence."""

    def __init__(self, inputs: DecoderInputs, max_length: int, sequences: int) -> None:
        self._inputs = inputs
        self.block_size = max_length
        self.blocks = sequences
        self.vocabulary = inputs.vocabulary
        self.takes_chunks = True
        self.goes_back = all(pair.axis is not None for pair in inputs.pairs)
        self._names = {spec.name for spec in inputs.model.inputs}
        self._states: dict[int, State] = {}  # by block
        self.cache_bytes = sequences * inputs.state_bytes(max_length)

    def run(self, steps: Sequence[Step], tokens: DeviceTensor | None = None) -> Any:  # noqa: ARG002
        results = [self._run_step(step) for step in steps]
        return results[0] if len(results) == 1 else np.concatenate(results)

    def _run_step(self, step: Step) -> NDArray[Any]:
        model, (block, *_) = self._inputs.model, step.blocks
        state = self._states.get(block)
        if state is None:
            state = self._states[block] = self._inputs.new_state(self.block_size)
        if state.length != step.past:
            state.truncate(step.past)
        feeds = self._inputs.feeds([step], 1, step.past + len(step.tokens), self._names)
        feeds.update({name: np.array([bool(step.past)]) for name in self._inputs.flags})
        logits = model.run(feeds, outputs=[self._inputs.logits], state=state)[self._inputs.logits]
        array: NDArray[Any] = logits.numpy() if isinstance(logits, DeviceTensor) else logits
        return np.ascontiguousarray(array[0, -step.selected :])

    def memory(self, rows: int, tokens: int, past: int) -> Memory | None:  # noqa: ARG002
        return None

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the states of sequences."""
        for source, target in zip(sources, targets):
            self._states[target] = self._states[source].copy()

    def forget(self, sequence: Any) -> None:
        for block in sequence.blocks:
            self._states.pop(block, None)


class DecoderInputs:
    """The inputs of a decoder besides its cache, made from the tokens of steps."""

    def __init__(self, folder: ModelFolder, model: Model, embedding: Model | None = None) -> None:
        self.folder = folder
        self.model = model
        self._embedding = embedding
        names = folder.names
        present = {spec.name: spec for spec in model.inputs}
        self.logits = names.logits
        self.ids = names.ids if names.ids in present else None
        self._embeddings = names.embeddings if names.embeddings in present else None
        self.mask = names.mask if names.mask in present else None
        self.positions = names.positions if names.positions in present else None
        self.flags = [names.cache_branch] if names.cache_branch in present else []
        self._dtypes = {name: spec.dtype for name, spec in present.items()}
        self._shapes = {name: spec.shape or () for name, spec in present.items()}
        outputs = {spec.name: spec for spec in model.outputs}
        if self.logits not in outputs:
            problem = f"the decoder has no output {self.logits!r}"
            raise UnsupportedModelError(problem, file=model.file, hint=f"it has {', '.join(list(outputs)[:6])}")
        shape = outputs[self.logits].shape
        size = shape[-1] if shape else None
        vocabulary = size if isinstance(size, int) else folder.vocabulary
        if vocabulary is None:
            hint = 'state "vocab_size" in config.json'
            raise UnsupportedModelError("the size of the vocabulary is not known", file=model.file, hint=hint)
        self.vocabulary = vocabulary
        self.pairs = self._find_pairs()
        own = {self.ids, self._embeddings, self.mask, self.positions, *self.flags, *(p.input for p in self.pairs)}
        others = [name for name in present if name not in own]
        if others or (self.ids is None and (self._embeddings is None or embedding is None)):
            missing = ", ".join(others) or "token ids or embeddings"
            hint = "export a decoder that takes input_ids, attention_mask, position_ids and past_key_values"
            if "block_table" in others:
                hint = "build it without use_paged_attention: weft pages the cache of every decoder itself"
            elif not others:
                hint = "build it without exclude_embeds, or add the model that embeds tokens to the folder"
            raise UnsupportedModelError(f"weft does not know what to pass as {missing}", file=model.file, hint=hint)

    def _find_pairs(self) -> tuple[StatePair, ...]:
        """Pair the inputs of the cache with outputs: by declared names and shapes, or else as `model.state` does.

        A cache that keeps a window of the tokens only is paged like the others, along the same axis.
        """
        outputs = {spec.name: spec for spec in self.model.outputs}
        pairs: dict[str, tuple[str, list[int], list[int]]] = {}  # outputs, axes that grow, and dynamic axes
        for spec in self.model.inputs:
            names = (name for name in list_output_names(spec.name) if name in outputs)
            output = outputs.get(next(names, ""))
            if not spec.name.startswith("past") or output is None or not spec.shape or not output.shape:
                continue
            sizes = list(zip(spec.shape, output.shape))
            dynamic = [axis for axis, both in enumerate(sizes) if all(isinstance(size, str) for size in both)]
            pairs[spec.name] = output.name, [axis for axis in dynamic if sizes[axis][0] != sizes[axis][1]], dynamic
        grown = {axis for _, axes, _ in pairs.values() for axis in axes}
        if len(grown) == 1 and len(pairs) == sum(spec.name.startswith("past") for spec in self.model.inputs):
            (axis,) = grown
            if all(axis in dynamic for _, _, dynamic in pairs.values()):
                return tuple(StatePair(name, output, axis) for name, (output, _, _) in pairs.items())
        return self._make_first_state().state_pairs

    def new_state(self, capacity: int) -> State:
        """Make an empty state for one sequence."""
        try:
            return self.model.state(capacity=capacity, pairs={pair.input: pair.output for pair in self.pairs})
        except InputError as error:
            raise self._cache_error(error) from error

    def _make_first_state(self) -> State:
        try:
            return self.model.state(capacity=1)
        except InputError as error:
            raise self._cache_error(error) from error

    def _cache_error(self, error: InputError) -> UnsupportedModelError:
        """Say what is wrong with the decoder's cache, with a hint for users of generators."""
        problem = "the decoder has no cache"
        if any(spec.name.startswith("past") for spec in self.model.inputs):
            problem = f"the cache of the decoder has an unknown form: {error.problem}"
        hint = "export it with a cache: optimum-cli export onnx --task text-generation-with-past"
        return UnsupportedModelError(problem, file=self.model.file, hint=hint)

    def state_bytes(self, capacity: int) -> int:
        """Return the bytes of a state with this capacity for one sequence."""
        total = 0
        pairs = {pair.input: pair for pair in self.pairs}
        for spec in self.model.inputs:
            pair = pairs.get(spec.name)
            if pair is None or spec.shape is None or spec.dtype is None:
                continue
            sizes = [
                capacity if axis == pair.axis else size if isinstance(size, int) else 1
                for axis, size in enumerate(spec.shape)
            ]
            total += int(np.prod(sizes)) * np.dtype(spec.dtype).itemsize
        return total

    @property
    def is_strict(self) -> bool:
        """Whether the order of sums does not depend on the number of rows."""
        return self.model.session().pipeline.precision == "strict"

    @property
    def takes_chosen_tokens(self) -> bool:
        """Whether token ids are an input of the type in which tokens are chosen."""
        return self.ids is not None and self._dtypes[self.ids] == np.int64

    @property
    def mask_size(self) -> str:
        """The name of the size of the mask, of all tokens."""
        shape = next((spec.shape for spec in self.model.inputs if spec.name == self.mask), None)
        return str(shape[-1]) if shape else ""

    def feeds(self, steps: Sequence[Step], rows: int, total: int, names: Container[str]) -> dict[str, Any]:
        """Return the inputs of a run, of those with these names; rows after the steps are padding.

        So are tokens after those of a step, which no token before them sees.
        """
        count = max(len(step.tokens) for step in steps)
        tokens = np.zeros((rows, count), np.int64)
        pasts = np.zeros(rows, np.int64)
        for row, step in enumerate(steps):
            tokens[row, : len(step.tokens)] = step.tokens
            pasts[row] = step.past
        feeds: dict[str, Any] = {}
        if self.ids is not None:
            feeds[self.ids] = tokens.astype(self._dtypes[self.ids], copy=False)
        else:
            assert self._embedding is not None and self._embeddings is not None
            name = self._embedding.inputs[0].name
            feeds[self._embeddings] = next(iter(self._embedding.run({name: tokens}).values()))
        if self.mask is not None and self.mask in names:
            visible = np.arange(total)[None] < (pasts + count)[:, None]
            feeds[self.mask] = visible.astype(self._dtypes[self.mask])
        if self.positions is not None and self.positions in names:
            positions = (pasts[:, None] + np.arange(count)).astype(self._dtypes[self.positions], copy=False)
            leading = [POSITION_KINDS if isinstance(size, str) else size for size in self._shapes[self.positions][:-2]]
            feeds[self.positions] = np.broadcast_to(positions, (*leading, *positions.shape))
        return feeds

    @property
    def single_token_sizes(self) -> tuple[tuple[str, tuple[int | None, ...]], ...]:
        """The shapes of inputs in a step of one token."""
        names = [name for name in (self.ids, self.positions) if name is not None]
        return tuple((name, (*[None] * (len(self._shapes[name]) - 1), 1)) for name in names)


@dataclass(frozen=True, slots=True)
class PagedPrograms:
    """The programs of a paged decoder: one for all steps, or one for prompts and one for single tokens.

    takes_chunks: whether chunks of a prompt have the bits of the whole; some exporters build masks that are right only
        for whole prompts and for single tokens.
    takes_rows: whether sequences run together at all; not where activations are quantized by the range of all of them.
    takes_padding: whether steps of one token run together whatever their pasts.
    pads_chunks: whether chunks run together whatever their lengths and pasts.
    phase_ends: of the phases of sequences, see `Decoder.find_phase`.
    total: the size of the mask, which may be computed.
    lengths: the sizes that are the number of past tokens.
    """

    prompts: Executable
    tokens: Executable
    takes_chunks: bool
    total: str
    lengths: tuple[str, ...]
    takes_rows: bool = True
    takes_padding: bool = False
    pads_chunks: bool = False
    phase_ends: tuple[int, ...] = ()

    def choose(self, tokens: int, past: int) -> Executable:
        """Return the program for this many tokens."""
        return self.tokens if tokens == 1 and past else self.prompts

    def hidden_sizes(self, past: int, total: int) -> dict[str, int]:
        """Return the sizes of a run that its inputs do not show."""
        return {self.total: total, **dict.fromkeys(self.lengths, past)}

    def pool_shapes(self, blocks: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return shapes and dtypes of the pools, by input."""
        program = self.prompts.program
        shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        names = {page.name for page in _pages(self.prompts)}
        for value in program.inputs:
            if value.name in names:
                sizes = (blocks, *(size for size in value.shape[1:]))
                if not all(isinstance(size, int) for size in sizes):
                    raise UnsupportedModelError(f"the shape of the cache {value.name!r} is not known: {value.type}")
                shapes[value.name] = tuple(int(str(size)) for size in sizes), value.dtype.numpy
        return shapes

    def run_sizes(self, inputs: DecoderInputs, rows: int, tokens: int, past: int, blocks: int) -> dict[str, int]:
        """Return the sizes of a run, by the names in the program."""
        total = past + tokens
        width = -(-total // BLOCK_SIZE)
        step = Step([0] * tokens, past, [0] * width)
        executable = self.choose(tokens, past)
        feeds = inputs.feeds([step] * rows, rows, total, executable.input_names)
        shapes: dict[str, tuple[int, ...]] = {name: array.shape for name, array in feeds.items()}
        shapes |= {TABLE: (rows, width), STARTS: (rows,), SELECTION: (rows, 1)}
        sizes = {BLOCKS: blocks, **self.hidden_sizes(past, total)}
        for value in executable.program.inputs:
            for size, dim in zip(shapes.get(value.name, ()), value.shape):
                if not isinstance(dim, int):
                    sizes.setdefault(str(dim), size)
        return sizes


def load_programs(inputs: DecoderInputs, length: int) -> PagedPrograms | None:
    """Load or compile the programs of a paged decoder; None if its cache cannot be paged.

    Sequences are at most `length` tokens long.
    """
    session = inputs.model.session()
    flags = tuple((name, True) for name in inputs.flags)
    form = PagedForm(
        inputs.pairs,
        inputs.logits,
        BLOCK_SIZE,
        flags=flags,
        mask=inputs.mask,
        positions=inputs.positions,
        ids=inputs.ids,
        vocabulary=inputs.vocabulary,
        length=length,
    )
    prompts = load_paged_program(session, form)
    if prompts is None:
        return None
    lengths = tuple(dict.fromkeys(page.length for page in _pages(prompts)))
    programs = PagedPrograms(prompts, prompts, takes_chunks=True, total=inputs.mask_size, lengths=lengths)
    if _accepts(programs, inputs, tokens=3, past=5) and _accepts(programs, inputs, tokens=1, past=5):
        return programs
    tokens = load_paged_program(session, replace(form, sizes=inputs.single_token_sizes))
    if tokens is None:
        return None
    programs = replace(programs, tokens=tokens, takes_chunks=False)
    is_usable = _accepts(programs, inputs, tokens=3, past=0) and _accepts(programs, inputs, tokens=1, past=5)
    return programs if is_usable else None


def _accepts(programs: PagedPrograms, inputs: DecoderInputs, *, tokens: int, past: int) -> bool:
    """Whether the guards of a program hold for such a step."""
    sizes = programs.run_sizes(inputs, 2 if tokens == 1 else 1, tokens, past, 64)
    try:
        programs.choose(tokens, past).plan(sizes)
    except (GuardError, ArithmeticError):
        return False
    return True


def _pages(executable: Executable) -> Sequence[Any]:
    state = getattr(executable.program, "state", None)
    return () if state is None else state.pages


def _round_rows(rows: int) -> int:
    """Round a number of rows up to a power of two, or to a multiple of 8."""
    return 1 << (rows - 1).bit_length() if rows <= 8 else -(-rows // 8) * 8


def context_limit(folder: ModelFolder, max_length: int | None) -> int:
    """Return the longest sequence: what the caller asks for, within the model's context."""
    limit = folder.context_length
    if max_length is None:
        return min(limit or DEFAULT_LENGTH, DEFAULT_LENGTH)
    max_length = whole_number(max_length, "max_length", str(folder.path), least=2)
    if limit is not None and max_length > limit:
        problem = f"max_length is {max_length:,}, and the model's context has {limit:,} tokens"
        raise InputError(problem, file=str(folder.path), hint=f"pass at most max_length={limit}")
    return max_length
