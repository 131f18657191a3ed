"""onnx's backend interface: `onnx.backend.test.BackendTest(weft.backend, __name__)` runs onnx's test suite on weft."""

from weft.compat.onnx_backend import WeftBackend, WeftBackendRep

is_compatible = WeftBackend.is_compatible
prepare = WeftBackend.prepare
run_model = WeftBackend.run_model
run_node = WeftBackend.run_node
supports_device = WeftBackend.supports_device

__all__ = ["WeftBackend", "WeftBackendRep", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]
