"""Engines of scripts/sizes: weft, and its peer on the same device, behind the same functions.

The peer is onnxruntime on the CPU, torch (eager) on an NVIDIA GPU, and none on WebGPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gpu_support import wait_function
from models.decoders import DecoderForm, decoder_inputs, present_name

import weft

Inputs = Mapping[str, Any]
WEFT, ONNXRUNTIME, TORCH = "weft", "onnxruntime", "torch"
PAUSE = 0.1  # seconds between engines; onnxruntime's threads spin for tens of milliseconds after a run


def has_own_memory(device: str) -> bool:
    return device.partition(":")[0] in ("cuda", "webgpu")


# -- models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """A model in an engine: `prepare` places inputs before the time counts, `run` returns when the device is idle."""

    name: str
    load_seconds: float
    prepare: Callable[[Inputs], Any]
    run: Callable[[Any], Any]

    def time_run(self, prepared: Any) -> float:
        """Return the seconds of a run."""
        start = time.perf_counter()
        self.run(prepared)
        return time.perf_counter() - start


def open_weft(path: Path, device: str) -> Engine:
    """Load a model in weft; inputs and outputs stay on a device with its own memory."""
    start = time.perf_counter()
    model = weft.load(path, device=device)
    seconds = time.perf_counter() - start
    if not has_own_memory(device):
        return Engine(WEFT, seconds, dict, model.run)
    wait = wait_function(device)

    def prepare(inputs: Inputs) -> Inputs:
        return {name: model.to_device(array) for name, array in inputs.items()}

    def run(inputs: Inputs) -> None:
        model.run(inputs, keep=True)
        wait()

    return Engine(WEFT, seconds, prepare, run)


def open_onnxruntime(path: Path) -> Engine:
    start = time.perf_counter()
    session = open_onnxruntime_session(path)
    return Engine(ONNXRUNTIME, time.perf_counter() - start, dict, lambda inputs: session.run(None, inputs))


def open_onnxruntime_session(path: Path) -> Any:
    """Open a session with the threads that weft uses."""
    import onnxruntime

    from weft.threads import usable_cores

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = usable_cores()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def open_torch_bert() -> Engine:
    """Build BERT-base in torch with random weights, on the GPU, in float32 without tf32."""
    import torch
    import transformers

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    start = time.perf_counter()
    model = transformers.BertModel(transformers.BertConfig()).cuda().eval()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start

    def prepare(inputs: Inputs) -> Inputs:
        return {name: torch.from_numpy(np.asarray(array)).cuda() for name, array in inputs.items()}

    def run(inputs: Inputs) -> None:
        with torch.inference_mode():
            model(**inputs)
        torch.cuda.synchronize()

    return Engine(TORCH, seconds, prepare, run)


# -- decoders --------------------------------------------------------------------------------------------------------


class Decoder:
    """Generates tokens in an engine: a prompt with an empty cache, then one token at a time."""

    name = ""
    notes: tuple[str, ...] = ()

    def __init__(self, decoder: str, form: DecoderForm) -> None:
        self.decoder = decoder
        self.form = form
        self.past_length = 0
        self.load_seconds = 0.0

    def time_step(self, tokens: Any) -> float:
        """Return the seconds until the logits of these tokens are on the host, or the device is idle."""
        inputs = decoder_inputs(self.decoder, tokens, self.past_length)
        start = time.perf_counter()
        self.step(inputs)
        seconds = time.perf_counter() - start
        self.past_length += tokens.shape[1]
        return seconds

    def step(self, inputs: Inputs) -> None:
        """Run the tokens and keep the grown cache for the next step."""
        raise NotImplementedError

    def empty_cache(self, dtype: str) -> dict[str, Any]:
        shape = (1, self.form.shape.kv_heads, 0, self.form.shape.head_size)
        return {name: np.zeros(shape, dtype) for name in self.form.past_names}


class WeftDecoder(Decoder):
    """weft with the cache as inputs and outputs, or with a state that it updates in place."""

    name = WEFT

    def __init__(
        self, decoder: str, form: DecoderForm, path: Path, device: str, dtype: str, capacity: int | None
    ) -> None:
        """`capacity` is the longest sequence of a state; None passes the cache as inputs."""
        super().__init__(decoder, form)
        start = time.perf_counter()
        self.model = weft.load(path, device=device)
        self.load_seconds = time.perf_counter() - start
        self.cache = self.empty_cache(dtype)
        self.keep: bool | Sequence[str] = has_own_memory(device) and list(map(present_name, form.past_names))
        self.state: Any = None
        if capacity is not None and hasattr(self.model, "state"):
            self.state = self.model.state(capacity={"past_sequence_length": capacity})
            self.notes = ("state in place",)
        elif capacity is not None:
            self.notes = ("Model.state does not exist: the cache is passed as inputs",)

    def step(self, inputs: Inputs) -> None:
        if self.state is not None:
            run: Callable[..., Any] = self.model.run
            run(inputs, state=self.state)
            return
        outputs = self.model.run({**inputs, **self.cache}, keep=self.keep)
        self.cache = {name: outputs[present_name(name)] for name in self.cache}


class OnnxruntimeDecoder(Decoder):
    """onnxruntime with the cache in its own tensors, which are not copied between steps."""

    name = ONNXRUNTIME

    def __init__(self, decoder: str, form: DecoderForm, path: Path, dtype: str) -> None:
        super().__init__(decoder, form)
        start = time.perf_counter()
        self.session = open_onnxruntime_session(path)
        self.load_seconds = time.perf_counter() - start
        self.cache = self._wrap(self.empty_cache(dtype))
        self.outputs = ["logits", *map(present_name, self.cache)]

    def step(self, inputs: Inputs) -> None:
        outputs = self.session.run_with_ort_values(self.outputs, {**self._wrap(inputs), **self.cache})
        outputs[0].numpy()
        self.cache = dict(zip(self.cache, outputs[1:]))

    @staticmethod
    def _wrap(arrays: Inputs) -> dict[str, Any]:
        import onnxruntime

        return {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}


class TorchDecoder(Decoder):
    """The architecture of transformers with random weights on the GPU, eager, with its growing cache."""

    name = TORCH

    def __init__(self, decoder: str, form: DecoderForm, dtype: str) -> None:
        import torch
        import transformers

        super().__init__(decoder, form)
        self.torch = torch
        shape = form.shape
        start = time.perf_counter()
        config: Any
        if decoder.startswith("gpt2"):
            config = transformers.GPT2Config(n_layer=shape.layers, vocab_size=shape.vocabulary, n_positions=4096)
            model: Any = transformers.GPT2LMHeadModel(config)
        else:
            config = transformers.Qwen2Config(
                vocab_size=shape.vocabulary,
                hidden_size=shape.hidden,
                intermediate_size=shape.intermediate,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                num_key_value_heads=shape.kv_heads,
                tie_word_embeddings=True,
            )
            model = transformers.Qwen2ForCausalLM(config)
        self.model = model.to(getattr(torch, dtype)).cuda().eval()
        torch.cuda.synchronize()
        self.load_seconds = time.perf_counter() - start
        self.cache: Any = None
        if form.weights == "int4":
            self.notes = (f"weights in {dtype}",)

    def step(self, inputs: Inputs) -> None:
        torch = self.torch
        with torch.inference_mode():
            tokens = torch.from_numpy(inputs["input_ids"]).cuda()
            outputs = self.model(tokens, past_key_values=self.cache, use_cache=True)
            self.cache = outputs.past_key_values
            outputs.logits[:, -1].cpu()
