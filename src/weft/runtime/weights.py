"""A model's weights as its users see them: by name, read-only, and checked when others are to take their place.

A weight is an initializer, or a constant among the nodes under the name of what it gives. Inside of a subgraph, the
first output of the node and the attribute come before that: "result/then_branch/weight". What functions hold is
theirs: it has no name that means one thing in the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from weft.errors import InputError, UnknownNameError, UnsupportedModelError, shown
from weft.ir.dtypes import from_numpy
from weft.ir.graph import OnnxModel, weight_arrays
from weft.ir.tensors import DeviceTensor
from weft.quantities import counted, shape_text, shortened
from weft.runtime.array_likes import as_array
from weft.runtime.model_files import ModelFiles
from weft.tables import ShownTable

Array = np.ndarray[Any, Any]


class Weights(Mapping[str, Array]):
    """The weights by name, as they are whenever one is asked for; `model.set_weight` changes one.

    Arrays are read-only, those of large models views of the file's content. A changed weight is another array: one
    that was asked for before stays as it is.
    """

    def __init__(self, files: Callable[[], ModelFiles]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> Array:
        model = self._files().model()
        if name not in model.weights:
            raise UnknownNameError(f"the model has no weight {shown(name)}", file=model.file, hint=_hint(name, model))
        return weight_arrays(model.graph)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files().model().weights)

    def __len__(self) -> int:
        return len(self._files().model().weights)

    def __contains__(self, name: object) -> bool:
        return name in self._files().model().weights

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'weight')} of {shortened(self._files().file)}>"

    def _repr_html_(self) -> str:
        model = self._files().model()
        arrays = weight_arrays(model.graph)
        rows = [(name, from_numpy(arrays[name].dtype), shape_text(arrays[name].shape)) for name in model.weights]
        return ShownTable(rows, ("weight", "type", "shape"), title=repr(self)[1:-1]).html()

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """A plain dict of what they are now, so that whoever reads it needs no model."""
        return dict, (dict(self),)


def checked_weights(given: Any, files: ModelFiles) -> dict[str, Array]:
    """New weights as arrays that nobody else has; InputError where a name, dtype or shape is not the model's."""
    if not isinstance(given, Mapping):
        hint = 'for instance {"conv1.weight": array}'
        raise InputError(f"weights must be a dict of arrays by name, not {shown(given)}", file=files.file, hint=hint)
    model = files.model()
    known = weight_arrays(model.graph)
    for name in given:
        if not isinstance(name, str) or name not in model.weights:
            raise InputError(f"the model has no weight {shown(name)}", file=files.file, hint=_hint(name, model))
    return {name: _checked(content, known[name], name, files.file) for name, content in given.items()}


def _checked(content: Any, known: Array, name: str, file: str) -> Array:
    dtype = from_numpy(known.dtype)
    content = content.numpy() if isinstance(content, DeviceTensor) else content
    array = as_array(content, dtype, f"weight {name!r}", file)
    try:
        found = str(from_numpy(array.dtype))
    except UnsupportedModelError:
        found = f"numpy's {array.dtype}"
    if found != dtype:
        hint = "convert it with array.astype; a model's types stay as they are"
        raise InputError(f"weight {name!r} is {dtype}, not {found}", file=file, hint=hint)
    if array.shape != known.shape:
        raise InputError(f"weight {name!r} has the shape {known.shape}, not {array.shape}", file=file)
    own = np.array(array, order="C")
    own.flags.writeable = False
    return own


def _hint(name: object, model: OnnxModel) -> str:
    if not model.weights:
        return "it has none"
    inside = [known for known in model.weights if isinstance(name, str) and known.endswith(f"/{name}")]
    close = inside[:3] or (get_close_matches(name, model.weights) if isinstance(name, str) else [])
    return f"did you mean {' or '.join(map(repr, close))}?" if close else "model.weights has those that there are"
