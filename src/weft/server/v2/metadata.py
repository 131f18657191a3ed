"""What the protocol tells of a server and its models: metadata, configuration and statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.server.served_model import ServedModel
from weft.server.snapshots import ModelSnapshot
from weft.server.statistics import BatchStatistics, Phase
from weft.server.v2.interface import TensorInfo
from weft.version import __version__

if TYPE_CHECKING:
    from weft.server.asgi import Application

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "generate",
)


def server_metadata() -> dict[str, Any]:
    """Describe the server."""
    return {"name": "weft", "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(served: ServedModel, versions: list[str]) -> dict[str, Any]:
    """Describe the inputs and outputs of a model."""
    return {
        "name": served.name,
        "versions": versions,
        "platform": served.platform,
        "inputs": [info.metadata() for info in served.interface.inputs.values()],
        "outputs": [info.metadata() for info in served.interface.outputs.values()],
    }


def model_config(served: ServedModel) -> dict[str, Any]:
    """Describe a model as Triton's configuration does: sizes are without the batch where there is one."""
    has_batch = served.max_batch > 0
    config: dict[str, Any] = {
        "name": served.name,
        "platform": served.platform,
        "backend": "weft",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": served.max_batch,
        "input": [_config_tensor(info, has_batch) for info in served.interface.inputs.values()],
        "output": [_config_tensor(info, has_batch) for info in served.interface.outputs.values()],
        "model_transaction_policy": {"decoupled": served.generator is not None},
        "parameters": {"device": {"string_value": served.device}},
    }
    if has_batch and served.batcher is not None:
        options = served.batcher.options
        config["dynamic_batching"] = {
            "preferred_batch_size": [options.largest],
            "max_queue_delay_microseconds": round(options.max_wait * 1e6),
        }
    if served.sequences is not None:
        config["sequence_batching"] = {"max_sequence_idle_microseconds": round(served.sequences.idle * 1e6)}
        config.pop("dynamic_batching", None)
    return config


def _config_tensor(info: TensorInfo, has_batch: bool) -> dict[str, Any]:
    kind = "STRING" if info.datatype == "BYTES" else info.datatype
    shape = info.wire_shape[1:] if has_batch else info.wire_shape
    tensor: dict[str, Any] = {"name": info.name, "data_type": f"TYPE_{kind}", "dims": shape}
    if info.is_optional:
        tensor["optional"] = True
    return tensor


def model_statistics(snapshot: ModelSnapshot) -> dict[str, Any]:
    """Return the counters of a model; times are in nanoseconds."""
    counts = snapshot.statistics
    return {
        "name": snapshot.name,
        "version": snapshot.version,
        "last_inference": counts.last_inference,
        "inference_count": counts.inferences,
        "execution_count": counts.executions,
        "inference_stats": {
            "success": _phase(counts.success),
            "fail": _phase(counts.fail),
            "queue": _phase(counts.queue),
            "compute_input": _phase(counts.compute_input),
            "compute_infer": _phase(counts.compute_infer),
            "compute_output": _phase(counts.compute_output),
            "cache_hit": _phase(Phase()),
            "cache_miss": _phase(Phase()),
        },
        "batch_stats": [_batch(rows, batch) for rows, batch in sorted(counts.batches.items())],
    }


async def collect_statistics(app: Application, name: str = "", version: str = "") -> list[dict[str, Any]]:
    """Return the counters of all models, or of those of a name and version."""
    chosen = [each for each in await app.snapshots() if name in ("", each.name) and version in ("", each.version)]
    return [model_statistics(snapshot) for snapshot in chosen]


def _batch(rows: int, batch: BatchStatistics) -> dict[str, Any]:
    return {
        "batch_size": rows,
        "compute_input": _phase(batch.input),
        "compute_infer": _phase(batch.infer),
        "compute_output": _phase(batch.output),
    }


def _phase(phase: Phase) -> dict[str, int]:
    return {"count": phase.count, "ns": phase.ns}
