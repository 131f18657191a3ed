"""A model's weights as its users see them: by name, read-only, and checked when others are to take their place.

A weight is an initializer of the model's main graph, or a constant among its nodes under the name of what it gives.
What subgraphs and functions hold is theirs: it has no name that means one thing in the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from weft.errors import InputError, UnsupportedModelError, shown
from weft.ir.dtypes import from_numpy
from weft.ir.graph import Graph, OnnxModel, weight_arrays
from weft.ir.tensors import DeviceTensor
from weft.runtime.inputs import as_array
from weft.runtime.model_files import ModelFiles

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
            raise KeyError(name)
        return weight_arrays(model.graph)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files().model().weights)

    def __len__(self) -> int:
        return len(self._files().model().weights)

    def __contains__(self, name: object) -> bool:
        return name in self._files().model().weights

    def __repr__(self) -> str:
        return f"<{len(self)} weights of {self._files().file}>"


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
    if isinstance(name, str) and any(name in weight_arrays(inner) for inner in _subgraphs(model.graph)):
        return "it belongs to a subgraph; only weights of the main graph can be set"
    close = get_close_matches(name, model.weights) if isinstance(name, str) else []
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return "model.weights has those that there are" if model.weights else "it has none"


def _subgraphs(graph: Graph) -> Iterator[Graph]:
    for node in graph.nodes:
        for value in node.attributes.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if isinstance(inner, Graph):
                    yield inner
                    yield from _subgraphs(inner)
