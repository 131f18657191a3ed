"""onnxruntime's classes that weft has nothing for: whoever makes one is told so, by the name of the class."""

from __future__ import annotations

from typing import Any

from weft.compat.onnxruntime.exceptions import refusal
from weft.compat.onnxruntime.naming import COLLECTION, STATE


def _refused_class(title: str, reason: str, module: str = STATE, makers: tuple[str, ...] = ()) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise refusal(title, reason)

    namespace: dict[str, Any] = {"__module__": module, "__doc__": f"Not supported: {reason}.", "__init__": refuse}
    return type(title, (), namespace | {maker: staticmethod(refuse) for maker in makers})


SparseTensor = _refused_class(
    "SparseTensor",
    "models take dense tensors here",
    COLLECTION,
    ("sparse_coo_from_numpy", "sparse_csr_from_numpy"),
)
ModelCompiler = _refused_class("ModelCompiler", "weft's own is `weft compile`", COLLECTION)
AdapterFormat = _refused_class("AdapterFormat", "weft has no adapters", COLLECTION, ("read_adapter",))
LoraAdapter = _refused_class("LoraAdapter", "weft has no adapters")
OrtArenaCfg = _refused_class("OrtArenaCfg", "weft plans memory, and has no allocators")
OrtMemoryInfo = _refused_class("OrtMemoryInfo", "weft plans memory, and has no allocators")
OrtEpDevice = _refused_class("OrtEpDevice", "weft's devices are in weft.devices()")
OrtHardwareDevice = _refused_class("OrtHardwareDevice", "weft's devices are in weft.devices()")
OrtSyncStream = _refused_class("OrtSyncStream", "weft orders runs by itself")
OrtEpAssignedNode = _refused_class("OrtEpAssignedNode", "weft's own report is another")
OrtEpAssignedSubgraph = _refused_class("OrtEpAssignedSubgraph", "weft's own report is another")
OrtEpContextData = _refused_class("OrtEpContextData", "weft has no contexts of providers")
OrtEpContextDataBuffer = _refused_class("OrtEpContextDataBuffer", "weft has no contexts of providers")
SessionObjectInitializer = _refused_class("SessionObjectInitializer", "sessions are made with InferenceSession")
OrtExternalInitializerInfo = _refused_class("OrtExternalInitializerInfo", "weft reads external data from files")
