"""`Tensor` and `NamedTensors`: arrays with the interface of onnxruntime_genai."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.compat.onnxruntime_genai.errors import unsupported_error


class Tensor:
    """An array on the host."""

    def __init__(self, array: Any) -> None:
        self._array = np.array(array)

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def type(self) -> str:
        """Return the name of the dtype; the original's `type` raises an error."""
        return str(self._array.dtype)

    def data(self) -> Any:
        raise unsupported_error("Tensor.data", "call as_numpy")

    def as_numpy(self) -> NDArray[Any]:
        return self._array


class NamedTensors:
    """Tensors by name."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __setitem__(self, name: str, tensor: Any) -> None:
        self._tensors[name] = tensor if isinstance(tensor, Tensor) else Tensor(tensor)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __delitem__(self, name: str) -> None:
        del self._tensors[name]

    def __len__(self) -> int:
        return len(self._tensors)

    def keys(self) -> list[str]:
        return list(self._tensors)
