"""What `weft.quantize` takes, stated and checked in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from weft.errors import InputError, shown
from weft.quantization.ranges import METHODS
from weft.quantization.samples import UNSCALED, PictureScale

INT8, INT4, FP16, BF16 = "int8", "int4", "fp16", "bf16"
TARGETS = (INT8, INT4, BF16, FP16)
QDQ, MICROSOFT_FORM, STANDARD_FORM, WEIGHTS_FORM, FULL_FORM = "qdq", "microsoft", "standard", "weights", "full"
FORMS = {
    INT8: (QDQ,),
    INT4: (MICROSOFT_FORM, STANDARD_FORM),
    FP16: (FULL_FORM, WEIGHTS_FORM),
    BF16: (WEIGHTS_FORM, FULL_FORM),
}
"""The ways to write each kind of numbers, the usual one first."""
ACTIVATIONS = ("uint8", "int8")
BLOCKS = (16, 32, 64, 128, 256)
SAMPLES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """What `weft.quantize` takes beside the model and the path; an InputError where an option is none.

    to: "int8" (QuantizeLinear and DequantizeLinear around layers, weights per channel, values by calibration), "int4"
        (weights of products in blocks, values as they are), "fp16" or "bf16".
    form: for int4, "microsoft" has a MatMulNBits of com.microsoft for each product, "standard" a DequantizeLinear with
        blocks (opset 21). For fp16 and bf16, "full" computes in that type where its range allows it, "weights" only
        keeps weights in it. None takes the usual one: bf16 keeps weights, since few engines compute in it.
    block: how many weights share a scale in int4.
    embeddings: whether tables that rows are looked up in become int4, too, as GatherBlockQuantized of com.microsoft.
    calibration: how ranges of values are chosen in int8: "mse", "minmax", "percentile" or "entropy".
    activations: the type of the codes of values in int8, "uint8" or "int8".
    keep: patterns (as of file names) of the names of nodes or values that stay as they are.
    leave: whether layers whose error is out of line are left as they are, too.
    budget: the largest error that an output may have, relative to its largest magnitude: layers are left as they are,
        the worst first, until that holds for the samples.
    samples: how many samples are used at most.
    sizes: the sizes of dynamic dims in made-up data.
    seed: of made-up data.
    pictures: what makes numbers of pictures.
    device: what computes ranges and errors, and is timed.
    threads: how many threads it may use.
    measure: whether to compare and time the result.
    """

    to: str
    form: str | None = None
    block: int = 32
    embeddings: bool = False
    calibration: str = "mse"
    activations: str = "uint8"
    keep: tuple[str, ...] = ()
    leave: bool = True
    budget: float | None = None
    samples: int = SAMPLES
    sizes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    pictures: PictureScale = UNSCALED
    device: str = "auto"
    threads: int | None = None
    measure: bool = True

    def __post_init__(self) -> None:
        _one_of("to", self.to, TARGETS)
        if self.form is not None:
            _one_of(f"form for {self.to}", self.form, FORMS[self.to])
        _one_of("calibration", self.calibration, tuple(METHODS))
        _one_of("activations", self.activations, ACTIVATIONS)
        if self.block not in BLOCKS:
            raise InputError(f"block must be one of {', '.join(map(str, BLOCKS))}, not {shown(self.block)}")
        if self.embeddings and (self.to != INT4 or self.written != MICROSOFT_FORM):
            raise InputError("embeddings are narrowed in int4 of the form microsoft alone")
        if isinstance(self.keep, str) or not all(isinstance(pattern, str) for pattern in self.keep):
            raise InputError(f"keep must be a list of patterns, not {shown(self.keep)}")
        if self.budget is not None and not 0 < self.budget < inf:
            raise InputError(f"budget must be more than 0, not {shown(self.budget)}")
        if isinstance(self.samples, bool) or not isinstance(self.samples, int) or self.samples < 1:
            raise InputError(f"samples must be at least 1, not {shown(self.samples)}")
        object.__setattr__(self, "keep", tuple(self.keep))

    @property
    def written(self) -> str:
        """The form in which numbers are written."""
        return self.form or FORMS[self.to][0]


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}, not {shown(value)}")
