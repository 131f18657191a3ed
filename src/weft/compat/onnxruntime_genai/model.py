"""`Model`: a language model of a folder, loaded by weft."""

from __future__ import annotations

from os import PathLike
from typing import Any

from weft.compat.onnxruntime_genai.config import Config
from weft.compat.onnxruntime_genai.errors import convert_errors, unsupported_error
from weft.errors import UnsupportedModelError
from weft.generation.decoder import (
    BLOCK_SIZE,
    Decoder,
    DecoderInputs,
    PagedDecoder,
    PagedPrograms,
    StateDecoder,
    load_programs,
)
from weft.generation.probes import probe_programs
from weft.generation.sampler import Sampler
from weft.ir.dims import LARGEST_SIZE
from weft.loading import load


class Model:
    """A model with its weights. Each `Generator` has a cache of its own."""

    def __init__(self, config: Config | str | PathLike[str]) -> None:
        self.config = config if isinstance(config, Config) else Config(config)
        self.folder = self.config.describe_folder()
        device = self.config.choose_device()
        with convert_errors():
            if self.folder.kind != "decoder":
                problem = f"{self.folder.name} is an {self.folder.kind}, which generates from more than text"
                raise UnsupportedModelError(problem, file=str(self.folder.path))
            self._model = load(self.folder.decoder, device=device)
            embedding = None if self.folder.embedding is None else load(self.folder.embedding, device=device)
            self.inputs = DecoderInputs(self.folder, self._model, embedding)
            self._programs = load_programs(self.inputs, self.folder.context_length or LARGEST_SIZE)
            self._probed: dict[int, PagedPrograms] = {}  # by the longest length
            self.sampler = Sampler(self.inputs.vocabulary, self._model.device)

    @property
    def type(self) -> str:
        """The architecture, such as `qwen2`."""
        return self.folder.model_type or ""

    @property
    def device_type(self) -> str:
        """The kind of the device: CPU, CUDA or WebGPU."""
        kind = self._model.device.partition(":")[0]
        return {"cpu": "CPU", "cuda": "CUDA", "webgpu": "WebGPU"}.get(kind, kind)

    def create_multimodal_processor(self) -> Any:
        problem = f"MultiModalProcessor cannot be created. {self.type} is not a registered multi-modal model type."
        raise RuntimeError(problem)

    def create_streaming_processor(self) -> Any:
        raise unsupported_error("Model.create_streaming_processor", "weft generates text from text")

    def make_decoder(self, sequences: int, max_length: int) -> Decoder:
        """Make a decoder with a cache for a number of sequences of this length."""
        if self._programs is None:
            return StateDecoder(self.inputs, max_length, sequences)
        if max_length not in self._probed:
            self._probed[max_length] = probe_programs(self.inputs, self._programs, max_length)
        return PagedDecoder(self.inputs, self._probed[max_length], sequences * -(-max_length // BLOCK_SIZE))
