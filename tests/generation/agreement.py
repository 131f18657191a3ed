"""Compare the logits of a decoder in weft and in onnxruntime: prompts, chunks, single tokens, batches, held states.

`Comparison(file).measure(mode)` runs a mode in both and returns the largest difference. Both get the same tokens, and
each feeds back its own cache, so that errors of a cache grow as they would in a generation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import weft

Array = np.ndarray[Any, Any]
Run = Callable[[dict[str, Array]], dict[str, Array]]

PROMPT_LENGTH = 21
CHUNKS = (8, 1, 12)
ROW_LENGTHS = (5, 21, 12)
DECODED_TOKENS = 4
GREEDY_TOKENS = 200
SEED = 3


@dataclass(frozen=True)
class Decoder:
    """The inputs and outputs of a decoder's file."""

    file: Path
    inputs: tuple[str, ...]
    caches: dict[str, tuple[int, int, np.dtype[Any]]]  # heads, head size and dtype by the input's name
    vocabulary: int
    grouped: bool  # GroupQueryAttention: padding follows the tokens of a row; otherwise it precedes them

    def present_name(self, past: str) -> str:
        return past.replace("past_key_values", "present")


@dataclass(frozen=True)
class Agreement:
    """The largest difference of logits in one mode, and the largest logit of onnxruntime."""

    mode: str
    error: float
    largest: float

    def is_within(self, tolerance: float) -> bool:
        return self.error <= tolerance * max(1.0, self.largest)


@dataclass(frozen=True)
class Step:
    """One run: tokens, the mask over past and new tokens, positions, and which logits count."""

    tokens: Array
    mask: Array
    positions: Array
    valid: Array


def find_decoder_file(folder: Path) -> Path:
    """Return the decoder of a folder of onnxruntime-genai or optimum, or the file itself."""
    if folder.is_file():
        return folder
    config = folder / "genai_config.json"
    if config.exists():
        return folder / str(json.loads(config.read_text(encoding="utf-8"))["model"]["decoder"]["filename"])
    names = ("model.onnx", "decoder_model_merged.onnx", "onnx/model.onnx")
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"{folder} has no genai_config.json and none of {', '.join(names)}")


def read_decoder(file: Path) -> Decoder:
    """Read the inputs of a decoder without its weights."""
    graph = onnx.load(file, load_external_data=False).graph
    caches = {}
    for value in graph.input:
        if value.name.startswith("past_key_values"):
            tensor = value.type.tensor_type
            _, heads, _, size = (dim.dim_value for dim in tensor.shape.dim)
            if not size:  # builders name it, as quantized caches have other sizes
                output = next(o for o in graph.output if o.name == value.name.replace("past_key_values", "present"))
                size = output.type.tensor_type.shape.dim[3].dim_value or _read_head_size(file)
            caches[value.name] = heads, size, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    logits = next(output for output in graph.output if output.name == "logits")
    vocabulary = logits.type.tensor_type.shape.dim[2].dim_value
    grouped = any(node.op_type == "GroupQueryAttention" for node in graph.node)
    return Decoder(file, tuple(value.name for value in graph.input), caches, vocabulary, grouped)


def _read_head_size(file: Path) -> int:
    config = json.loads((file.parent / "genai_config.json").read_text(encoding="utf-8"))
    return int(config["model"]["decoder"]["head_size"])


def load_onnxruntime(file: Path) -> Run:
    """Load a decoder into onnxruntime, single-threaded and without logs.

    Caches of a window keep all tokens, as they do in a state of weft. Memory is not reused: builders give two sizes of
    a decoder the same name.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_mem_reuse = False
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(file.parent))
    model = onnx.load(file, load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "sliding_window_cache":
                attribute.i = 0
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


class Comparison:
    """A decoder in weft and in onnxruntime."""

    def __init__(self, file: Path, device: str = "cpu") -> None:
        self.decoder = read_decoder(file)
        self.device = device
        self.model = weft.load(file, device=device)
        self.oracle = load_onnxruntime(file)

    def measure(self, mode: str, prompt_length: int = PROMPT_LENGTH) -> Agreement:
        """Run a mode of `MODES` or `GENERATOR_MODES` in both, and compare their logits."""
        if mode in GENERATOR_MODES:
            length = 2 * prompt_length + GREEDY_TOKENS
            with weft.Generator(self._find_folder(), device=self.device, max_length=length) as generator:
                return GENERATOR_MODES[mode](self, generator, prompt_length)
        steps = list(MODES[mode](self.decoder, prompt_length))
        expected = list(run_steps(self.decoder, self.oracle, steps))
        if mode == "state":
            actual = list(run_with_state(self.decoder, self.model, steps))
        else:
            actual = list(run_steps(self.decoder, lambda feeds: dict(self.model.run(feeds)), steps))
        error = largest = 0.0
        for step, logits, reference in zip(steps, actual, expected, strict=True):
            wide = reference[step.valid].astype(np.float64)
            difference = np.abs(logits[step.valid] - wide)
            error = max(error, float(np.nan_to_num(difference, nan=np.inf).max()))
            largest = max(largest, float(np.abs(wide).max()))
        return Agreement(mode, error, largest)

    def _find_folder(self) -> Path:
        folder = self.decoder.file.parent
        return folder if (folder / "genai_config.json").exists() else self.decoder.file

    def compute_logits(self, prompt: Sequence[int], answer: Sequence[int]) -> Iterator[Array]:
        """Yield onnxruntime's logits in float64 before each token of an answer, from a run of the prompt on."""
        rows = [np.array([prompt], np.int64), *(np.array([[token]], np.int64) for token in answer[:-1])]
        ends = np.cumsum([row.shape[1] for row in rows])
        steps = [
            Step(row, np.ones((1, end), np.int64), np.arange(end - row.shape[1], end)[None], np.ones(row.shape, bool))
            for row, end in zip(rows, ends, strict=True)
        ]
        for logits in run_steps(self.decoder, self.oracle, steps):
            yield logits[0, -1].astype(np.float64)

    def _make_prompt(self, seed: int, length: int) -> list[int]:
        return np.random.default_rng([SEED, seed]).integers(0, self.decoder.vocabulary, length).tolist()


def compare_batch(comparison: Comparison, generator: weft.Generator, prompt_length: int) -> Agreement:
    """Compare log probabilities of prompts of several lengths that are generated together."""
    lengths = (1, *(max(1, prompt_length * size // max(ROW_LENGTHS)) for size in ROW_LENGTHS), 2 * prompt_length)
    prompts = [comparison._make_prompt(seed, length) for seed, length in enumerate(lengths)]
    answers = generator(prompts, max_new_tokens=12, temperature=1.0, top_k=0, top_p=1.0, seed=3, logprobs=5)
    error = largest = 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        logits = comparison.compute_logits(prompt, answer.tokens)
        for entry, row in zip(answer.logprobs, logits, strict=True):
            shift = row.max() + np.log(np.exp(row - row.max()).sum())
            for token, logprob in ((entry.token, entry.logprob), *entry.top):
                error = max(error, float(np.nan_to_num(abs(logprob - (row[token] - shift)), nan=np.inf)))
            largest = max(largest, float(np.abs(row).max()))
    return Agreement("batch", error, largest)


def compare_greedy(comparison: Comparison, generator: weft.Generator, prompt_length: int) -> Agreement:
    """Measure by how much greedy tokens miss the largest logit of onnxruntime: 0 if all are its own greedy tokens."""
    ends = list(generator.folder.end_tokens)
    prompt = comparison._make_prompt(7, prompt_length)
    options: dict[str, Any] = {"temperature": 0, "repetition_penalty": 1.0, "logit_bias": dict.fromkeys(ends, -np.inf)}
    answer = generator(prompt, max_new_tokens=GREEDY_TOKENS, **options)
    error = largest = 0.0
    for token, row in zip(answer.tokens, comparison.compute_logits(prompt, answer.tokens), strict=True):
        row[ends] = -np.inf
        error = max(error, float(row.max() - row[token]))
        largest = max(largest, float(np.abs(row[np.isfinite(row)]).max()))
    return Agreement("greedy", error if len(answer.tokens) == GREEDY_TOKENS else np.inf, largest)


def run_steps(decoder: Decoder, run: Run, steps: Sequence[Step]) -> Iterator[Array]:
    """Run steps that feed back the caches; yield the logits of each."""
    rows = len(steps[0].tokens)
    caches = {name: np.zeros((rows, h, 0, size), dtype) for name, (h, size, dtype) in decoder.caches.items()}
    for step in steps:
        outputs = run(_make_feeds(decoder, step) | caches)
        yield outputs["logits"]
        caches = {name: outputs[decoder.present_name(name)] for name in caches}


def run_with_state(decoder: Decoder, model: Any, steps: Sequence[Step]) -> Iterator[Array]:
    """Run steps in weft with a state that holds the caches; yield the logits of each."""
    state = model.state(capacity=sum(step.tokens.shape[1] for step in steps) + 8)
    for step in steps:
        yield model.run(_make_feeds(decoder, step), state=state)["logits"]


def _make_feeds(decoder: Decoder, step: Step) -> dict[str, Array]:
    feeds = {"input_ids": step.tokens, "attention_mask": step.mask, "position_ids": step.positions}
    return {name: value for name, value in feeds.items() if name in decoder.inputs}


def _make_row_steps(decoder: Decoder, lengths: Sequence[int]) -> Iterator[Step]:
    """Make steps for one row, with as many tokens as `lengths` say."""
    random = np.random.default_rng(SEED)
    past = 0
    for length in lengths:
        tokens = random.integers(0, decoder.vocabulary, (1, length))
        positions = np.arange(past, past + length)[None]
        past += length
        yield Step(tokens, np.ones((1, past), np.int64), positions, np.ones((1, length), bool))


def make_prompt(decoder: Decoder, length: int) -> Iterator[Step]:
    return _make_row_steps(decoder, [length])


def make_chunks(decoder: Decoder, length: int) -> Iterator[Step]:
    first, second, _ = (max(1, length * size // sum(CHUNKS)) for size in CHUNKS)
    return _make_row_steps(decoder, [first, second, max(1, length - first - second)])


def make_single_tokens(decoder: Decoder, length: int) -> Iterator[Step]:
    return _make_row_steps(decoder, [length, *[1] * DECODED_TOKENS])


def make_padded_batch(decoder: Decoder, length: int) -> Iterator[Step]:
    """Make a padded batch of prompts of several lengths, then single tokens for all rows."""
    random = np.random.default_rng(SEED)
    counts = np.array([max(1, length * size // max(ROW_LENGTHS)) for size in ROW_LENGTHS])
    width = int(counts.max())
    columns = np.arange(width)
    if decoder.grouped:
        mask = columns < counts[:, None]
        positions = np.broadcast_to(columns, mask.shape)
    else:
        mask = columns >= width - counts[:, None]
        positions = np.maximum(columns - (width - counts[:, None]), 0)
    tokens = np.where(mask, random.integers(1, decoder.vocabulary, mask.shape), 0)
    yield Step(tokens, mask.astype(np.int64), np.ascontiguousarray(positions), mask)
    for number in range(DECODED_TOKENS):
        mask = np.concatenate([mask, np.ones((len(counts), 1), bool)], axis=1)
        tokens = random.integers(1, decoder.vocabulary, (len(counts), 1))
        positions = (counts + number)[:, None]
        yield Step(tokens, mask.astype(np.int64), positions, np.ones((len(counts), 1), bool))


MODES: dict[str, Callable[[Decoder, int], Iterator[Step]]] = {
    "prompt": make_prompt,
    "chunks": make_chunks,
    "decode": make_single_tokens,
    "padded": make_padded_batch,
    "state": make_single_tokens,
}

GENERATOR_MODES: dict[str, Callable[[Comparison, weft.Generator, int], Agreement]] = {
    "batch": compare_batch,
    "greedy": compare_greedy,
}
