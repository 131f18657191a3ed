"""Read a model from any source into a validated `OnnxModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx
import onnx.defs

from weft.errors import InvalidModelError
from weft.frontend.formats import HEAD_BYTES, TAIL_BYTES, identify_format
from weft.frontend.graphs import Context, KnownAttributes, read_main_graph
from weft.frontend.inline import IsDefined, inline_functions
from weft.frontend.opsets import model_imports
from weft.frontend.repair import repair_model
from weft.frontend.save import weight_names
from weft.frontend.source import ModelSource, OpenedModel, make_private, name_file_in_errors, open_source, source_name
from weft.frontend.storage import WeightStorage
from weft.frontend.text import check_text
from weft.frontend.wire import strip_weights
from weft.ir.graph import OnnxModel, weight_arrays
from weft.ir.metadata import Metadata
from weft.ir.packing import release_pages
from weft.logs import LOADING


class OpFacts(NamedTuple):
    """What the caller knows about operators."""

    is_defined: IsDefined
    known_attributes: KnownAttributes


def is_standard(domain: str, op: str, version: int) -> bool:  # noqa: ARG001 - the shape of IsDefined
    """Whether onnx or onnxruntime defines an op."""
    return domain.startswith("com.microsoft") or bool(onnx.defs.has(op, domain))


def reject_unknown_attributes(domain: str, op: str, version: int) -> None:
    """Let no operator ignore attributes: `known_attributes` of a strict load."""


def read_model(
    source: ModelSource,
    *,
    is_defined: IsDefined = is_standard,
    folders: Sequence[Path] = (),
    known_attributes: KnownAttributes = reject_unknown_attributes,
    strict: bool = False,
) -> OnnxModel:
    """Read a model from a path, bytes, an open binary file or a ModelProto.

    is_defined: whether the caller defines (domain, op, version); calls of other functions are inlined.
    known_attributes: the attributes of (domain, op, version) if that op ignores unknown ones, otherwise None.
    folders: where large private copies of its files may be stored.
    strict: reject invalid models that onnxruntime accepts; otherwise they are repaired, with a warning in the log.

    Every problem with a file raises a `WeftError` that names the file.
    """
    with name_file_in_errors(source_name(source)):
        opened = make_private(open_source(source), folders)
        ops = OpFacts(is_defined, reject_unknown_attributes if strict else known_attributes)
        try:
            return _read(opened, *_parse_proto(opened, folders), ops)
        except InvalidModelError:
            if strict:
                raise
            proto, storage = _parse_proto(opened, folders)
            changes = repair_model(proto)
            if not changes:
                raise
            model = _read(opened, proto, storage, ops)
        for change in changes:
            LOADING.warning("%s: %s", opened.file, change)
        return model


def _read(source: OpenedModel, proto: onnx.ModelProto, storage: WeightStorage, ops: OpFacts) -> OnnxModel:
    imports = model_imports(proto)
    weights = weight_names(proto.graph)
    inline_functions(proto, imports, ops.is_defined)
    graph = read_main_graph(Context(storage, imports, ops.known_attributes), proto.graph)
    arrays = weight_arrays(graph)  # without weights that are renamed here
    return OnnxModel(
        graph=graph,
        opsets=imports,
        ir_version=proto.ir_version,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        file=source.file,
        metadata={entry.key: entry.value for entry in proto.metadata_props},
        external=storage.external,
        weights=tuple(name for name in weights if name in arrays),
        about=_read_metadata(proto, imports),
    )


def _read_metadata(proto: onnx.ModelProto, imports: Mapping[str, int]) -> Metadata:
    return Metadata(
        producer_name=proto.producer_name,
        producer_version=proto.producer_version,
        domain=proto.domain,
        model_version=proto.model_version,
        ir_version=proto.ir_version,
        opsets={domain or "ai.onnx": version for domain, version in imports.items()},
        description=proto.doc_string,
        graph_name=proto.graph.name,
        graph_description=proto.graph.doc_string,
        properties={entry.key: entry.value for entry in proto.metadata_props},
    )


def _parse_proto(source: OpenedModel, folders: Sequence[Path]) -> tuple[onnx.ModelProto, WeightStorage]:
    if not len(source.view):
        raise InvalidModelError("the model is empty", hint="fetch or export it again")
    try:
        content, extents = strip_weights(source.view)
        release_pages(source.view)
        proto = onnx.ModelProto.FromString(content)
        if not proto.HasField("graph") or not proto.HasField("ir_version"):
            hint = "the file is damaged or has another format"
            raise InvalidModelError("not an ONNX model: it has no graph or no IR version", hint=hint)
    except MemoryError:
        raise
    except Exception as error:  # of weft or protobuf
        view = source.view
        name = "" if source.path is None else str(source.path)
        other_format = identify_format(view[:HEAD_BYTES].tobytes(), view[-TAIL_BYTES:].tobytes(), name)
        if other_format is None:
            raise
        description, hint = other_format
        raise InvalidModelError(f"this is {description}", hint=hint) from error
    check_text(proto)
    return proto, WeightStorage(source, extents, folders)
