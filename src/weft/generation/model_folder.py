"""What a folder says about its language model: files, names of inputs and outputs, special tokens, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class DecoderNames:
    """Names of a decoder's inputs and outputs. `%d` stands for the number of a layer.

    A folder of onnxruntime-genai may state them. The defaults are also the names of optimum and transformers.js. The
    graph decides which of them exist.
    """

    ids: str | None = "input_ids"
    embeddings: str | None = "inputs_embeds"
    mask: str | None = "attention_mask"
    positions: str | None = "position_ids"
    past_key: str | None = "past_key_values.%d.key"
    past_value: str | None = "past_key_values.%d.value"
    logits: str = "logits"
    present_key: str | None = "present.%d.key"
    present_value: str | None = "present.%d.value"
    cross_past_key: str | None = None  # of the encoder's states, in encoder–decoders
    cross_past_value: str | None = None
    cross_present_key: str | None = None
    cross_present_value: str | None = None
    encoder_states: str | None = None
    encoder_mask: str | None = None
    cache_branch: str | None = None  # the flag of merged decoders: false in the first step
    further_inputs: Mapping[str, str] = field(default_factory=dict)
    """Other names that the folder states, by their field: `past_conv_names`, `block_table`, …"""
    further_outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """Names of an encoder's inputs and outputs; None where the folder does not state them."""

    features: str | None = None
    mask: str | None = None
    states: str | None = "last_hidden_state"
    cross_present_key: str | None = None  # where the encoder computes the decoder's cross-attention keys
    cross_present_value: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A language model on disk."""

    path: Path
    """The folder of the model, of its configuration and of its tokenizer."""
    name: str
    kind: str
    """`decoder` or `encoder-decoder`."""
    origin: str
    """The format of the folder: `onnxruntime-genai`, `optimum` (also of transformers.js) or `file`."""
    decoder: Path
    model_type: str | None = None
    """The architecture, as the configuration names it: `qwen3`, `whisper`, …"""
    variant: str | None = None
    """The precision in the decoder's file name: `q4`, `fp16`, …; `fp32` for none."""
    decoder_with_past: Path | None = None
    """The file of all steps but the first, in folders with two decoders."""
    encoder: Path | None = None
    embedding: Path | None = None
    """The file that maps ids to the decoder's embeddings, where the decoder does not take ids."""
    names: DecoderNames = field(default_factory=DecoderNames)
    encoder_names: EncoderNames = field(default_factory=EncoderNames)

    layers: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    hidden_size: int | None = None
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] | None = None
    """The layers with a sliding window; None: all of them, if there is a window."""
    shares_cache: bool = False
    """Whether past and present are one buffer of the longest length (`past_present_share_buffer`)."""
    context_length: int | None = None
    max_length: int | None = None
    """The default limit of prompt and answer together."""
    vocabulary: int | None = None

    end_tokens: tuple[int, ...] = ()
    start_token: int | None = None
    pad_token: int | None = None
    decoder_start_token: int | None = None
    """The first token of an encoder–decoder's answer."""
    forced_tokens: Mapping[int, int] = field(default_factory=dict)
    """Tokens that must stand at some positions of the answer (Whisper's language and task)."""
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields of GenerationOptions. `temperature` is 0 where the configuration does not sample."""

    def __repr__(self) -> str:
        variant = f", {self.variant}" if self.variant else ""
        return f"ModelFolder({self.name!r}, {self.kind}, {self.origin}{variant})"


def name_folder(path: Path) -> str:
    """Return a folder's name, or that of the repository for a folder in the cache of Hugging Face."""
    path = path.absolute()
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.resolve().name
