"""What the protocol says of a model's inputs and outputs, and the checks of requests against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import ModelError
from weft.ir.specs import TensorSpec
from weft.quantities import join_few
from weft.server.http import HttpError
from weft.server.v2.datatypes import NUMPY_TYPES, Shape, datatype_of


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output: its datatype, and its sizes, None where they are dynamic; no shape if the rank is dynamic."""

    name: str
    datatype: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None
    is_optional: bool = False

    @property
    def wire_shape(self) -> list[int]:
        """The shape as the protocol writes it: -1 for a dynamic size."""
        return [-1 if size is None else size for size in ((None,) if self.shape is None else self.shape)]

    def metadata(self) -> dict[str, Any]:
        """Describe it as the protocol does."""
        return {"name": self.name, "datatype": self.datatype, "shape": self.wire_shape}


@dataclass(frozen=True, slots=True)
class ModelInterface:
    """The inputs and outputs of a model that the protocol can carry.

    omitted: outputs of its file that it cannot, such as sequences and maps; they are not computed.
    selects_outputs: whether the model has outputs that a run must leave out.
    state_inputs: inputs that a sequence may leave out, since its state has them.
    """

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]
    omitted: tuple[str, ...] = ()
    selects_outputs: bool = False
    state_inputs: frozenset[str] = frozenset()

    @property
    def default_outputs(self) -> tuple[str, ...] | None:
        """The outputs of a request that names none; None for all outputs of the model."""
        return tuple(self.outputs) if self.selects_outputs else None

    def find_input(self, name: Any, datatype: Any, shape: Shape) -> TensorInfo:
        """Return the input that a request names, if its datatype and shape fit."""
        info = self.inputs.get(name) if isinstance(name, str) else None
        if info is None:
            input_names = join_few(map(repr, self.inputs), 12) or "none"
            raise HttpError(400, f"the model has no input {name!r}; its inputs are {input_names}")
        if datatype != info.datatype:
            raise HttpError(400, f"input {name!r} takes {info.datatype}, and the request has {datatype}")
        expected = info.shape
        if expected is not None and not (
            len(expected) == len(shape) and all(size is None or size == actual for size, actual in zip(expected, shape))
        ):
            problem = f"input {name!r} takes {info.datatype}{info.wire_shape}, and the request has {list(shape)}"
            raise HttpError(400, problem)
        return info

    def check_complete(self, arrays: Mapping[str, Any], is_sequence: bool = False) -> None:
        """Raise HttpError if a required input is missing."""
        if len(arrays) >= len(self.inputs):
            return
        missing = [
            name
            for name, info in self.inputs.items()
            if name not in arrays and not info.is_optional and not (is_sequence and name in self.state_inputs)
        ]
        if missing:
            raise HttpError(400, f"the request lacks input {join_few(map(repr, missing), 8)}")

    def check_output(self, name: Any) -> TensorInfo:
        """Return an output that a request names."""
        info = self.outputs.get(name) if isinstance(name, str) else None
        if info is not None:
            return info
        if name in self.omitted:
            raise HttpError(400, f"output {name!r} has no datatype in this protocol")
        raise HttpError(
            400, f"the model has no output {name!r}; its outputs are {join_few(map(repr, self.outputs), 12)}"
        )


def describe_interface(
    inputs: Iterable[TensorSpec],
    defaults: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    file: str,
    omitted: Sequence[str] = (),
) -> ModelInterface:
    """Describe a model; ModelError if it requires an input that the protocol cannot carry.

    omitted: further outputs, which it was loaded without.
    """
    described: dict[str, TensorInfo] = {}
    for spec in inputs:
        info = _describe(spec)
        if info is None:
            problem = f"input {spec.name!r} is a {spec.type}, which the inference protocol cannot carry"
            raise ModelError(problem, file=file, hint="serve a model whose inputs are tensors of usual types")
        described[spec.name] = info
    for spec in defaults:
        info = _describe(spec, is_optional=True)
        if info is not None:
            described[spec.name] = info
    results = {spec.name: _describe(spec) for spec in outputs}
    carried = {name: info for name, info in results.items() if info is not None}
    others = tuple(name for name, info in results.items() if info is None)
    return ModelInterface(described, carried, (*others, *omitted), bool(others))


def _describe(spec: TensorSpec, is_optional: bool = False) -> TensorInfo | None:
    datatype = datatype_of(spec)
    if datatype is None:
        return None
    shape = None if spec.shape is None else tuple(size if isinstance(size, int) else None for size in spec.shape)
    return TensorInfo(spec.name, datatype, NUMPY_TYPES[datatype], shape, is_optional)


def select_outputs(interface: ModelInterface, names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the outputs to compute for a request that names some, in the order of the model; None for all."""
    if not names:
        return interface.default_outputs
    requested_names = dict.fromkeys(names)
    for name in requested_names:
        interface.check_output(name)
    chosen = tuple(name for name in interface.outputs if name in requested_names)
    return None if len(chosen) == len(interface.outputs) and not interface.selects_outputs else chosen
