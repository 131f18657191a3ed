"""The options of `weft.quantize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from weft.errors import InputError, short_repr
from weft.quantization.ranges import METHODS
from weft.readers.images import DEFAULT_IMAGE_OPTIONS, ImageOptions

NumberKind = Literal["int8", "int4", "bf16", "fp16"]
NumberForm = Literal["qdq", "microsoft", "standard", "weights", "full"]
RangeMethod = Literal["mse", "minmax", "percentile", "entropy"]
CodeKind = Literal["uint8", "int8"]
INT8, INT4, FP16, BF16 = "int8", "int4", "fp16", "bf16"
TARGETS = (INT8, INT4, BF16, FP16)
QDQ, MICROSOFT_FORM, STANDARD_FORM, WEIGHTS_FORM, FULL_FORM = "qdq", "microsoft", "standard", "weights", "full"
FORMS = {
    INT8: (QDQ,),
    INT4: (MICROSOFT_FORM, STANDARD_FORM),
    FP16: (FULL_FORM, WEIGHTS_FORM),
    BF16: (WEIGHTS_FORM, FULL_FORM),
}
"""The forms of each number format, the default first."""
ACTIVATIONS = ("uint8", "int8")
BLOCKS = (16, 32, 64, 128, 256)
SAMPLES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """Validated options; raises InputError for a wrong value."""

    to: NumberKind
    form: NumberForm | None = None
    block: int = 32
    embeddings: bool = False
    calibration: RangeMethod = "mse"
    activations: CodeKind = "uint8"
    keep: Sequence[str] = ()
    leave: bool = True
    budget: float | None = None
    samples: int = SAMPLES
    sizes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    pictures: ImageOptions = DEFAULT_IMAGE_OPTIONS
    device: str = "auto"
    threads: int | None = None
    measure: bool = True

    def __post_init__(self) -> None:
        _check_choice("to", self.to, TARGETS)
        if self.form is not None:
            _check_choice(f"form for {self.to}", self.form, FORMS[self.to])
        _check_choice("calibration", self.calibration, tuple(METHODS))
        _check_choice("activations", self.activations, ACTIVATIONS)
        if self.block not in BLOCKS:
            raise InputError(f"block must be one of {', '.join(map(str, BLOCKS))}, not {short_repr(self.block)}")
        if self.embeddings and (self.to != INT4 or self.written != MICROSOFT_FORM):
            raise InputError("embeddings=True needs to='int4' and form='microsoft'")
        if isinstance(self.keep, str) or not all(isinstance(pattern, str) for pattern in self.keep):
            raise InputError(f"keep must be a list of patterns, not {short_repr(self.keep)}")
        if self.budget is not None and not 0 < self.budget < inf:
            raise InputError(f"budget must be more than 0, not {short_repr(self.budget)}")
        if isinstance(self.samples, bool) or not isinstance(self.samples, int) or self.samples < 1:
            raise InputError(f"samples must be at least 1, not {short_repr(self.samples)}")
        object.__setattr__(self, "keep", tuple(self.keep))

    @property
    def written(self) -> str:
        """The form of the file: the chosen one, or the default."""
        return self.form or FORMS[self.to][0]


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, not {short_repr(value)}")
