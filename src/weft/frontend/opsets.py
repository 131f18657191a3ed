"""The version of each operator domain that a model imports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
import onnx.defs

from weft.errors import InvalidModelError, UnsupportedModelError

OLDEST = 1
"""The oldest supported opset of ai.onnx."""

IMPLIED = {"com.microsoft": 1}
"""Domains that onnxruntime lets a model use without importing them."""

VERSION_KEY = "weft.version"
"""The metadata key of an inlined node that holds its opset version."""


def canonical_domain(domain: str) -> str:
    """Return the canonical name of a domain: ai.onnx is the empty string."""
    return "" if domain == "ai.onnx" else domain


def read_imports(entries: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the version of each domain that a model or function imports."""
    imports: dict[str, int] = {}
    for entry in entries:
        domain = canonical_domain(entry.domain)
        version = int(entry.version)
        if imports.setdefault(domain, version) != version:
            raise InvalidModelError(
                f"opsets {imports[domain]} and {version} of {domain or 'ai.onnx'} are both imported"
            )
        _check_version(domain, version)
    return imports


def model_imports(model: onnx.ModelProto) -> dict[str, int]:
    """Return the imports of a model; before IR version 3, models used opset 1."""
    if model.ir_version < 3 and not model.opset_import:
        return {"": 1}
    return read_imports(model.opset_import)


def node_version(node: onnx.NodeProto, imports: Mapping[str, int]) -> int:
    """Return the opset version of a node: its own if it came from a function, otherwise the model's."""
    for entry in node.metadata_props:
        if entry.key == VERSION_KEY:
            return int(entry.value)
    domain = canonical_domain(node.domain)
    version = imports.get(domain, IMPLIED.get(domain))
    if version is None:
        raise InvalidModelError(
            f"{node.op_type} is an operator of domain {domain or 'ai.onnx'}, which the model does not import",
            hint="add the domain to the model's opset_import",
        )
    return version


def set_node_version(node: onnx.NodeProto, version: int | None) -> None:
    """Store the version that a function's imports give to one of its nodes, if they do."""
    del node.metadata_props[:]
    if version is not None:
        node.metadata_props.add(key=VERSION_KEY, value=str(version))


def _check_version(domain: str, version: int) -> None:
    newest = {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": onnx.defs.onnx_ml_opset_version()}
    name = domain or "ai.onnx"
    if not domain and version < OLDEST:
        raise UnsupportedModelError(
            f"the model uses opset {version} of {name}; weft supports {OLDEST} to {newest[domain]}",
            hint="export the model again with a newer opset",
        )
    if version > newest.get(domain, version):
        raise UnsupportedModelError(
            f"the model uses opset {version} of {name}; the installed onnx {onnx.__version__} supports versions up to "
            f"{newest[domain]}",
            hint="install a newer onnx package, or export the model with an older opset",
        )
