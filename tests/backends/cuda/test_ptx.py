"""NVIDIA's assembler accepts the PTX of small models, for several GPU generations and all precisions.

Kernels with tile products spill no registers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from backends.cuda.conftest import GPUS as KNOWN
from backends.cuda.conftest import Attach
from backends.cuda.recording_driver import H200, L40
from backends.llvm.ptx import assemble, find_ptxas
from frontend.samples import model, node, tensor, value
from onnx import TensorProto, helper

import weft
from weft.backends.cuda.processors import choose_processor

PTXAS = find_ptxas()
pytestmark = pytest.mark.skipif(PTXAS is None, reason="no ptxas: WEFT_PTXAS and PATH name none")
GPUS = {**KNOWN, "h200 of 12.0": replace(H200, driver=12000), "l40": L40}
F32, F16 = TensorProto.FLOAT, TensorProto.FLOAT16


def zeros(name: str, *shape: int, dtype: Any = np.float32) -> onnx.TensorProto:
    return tensor(name, np.zeros(shape, dtype))


def layer(kind: int = F32, rows: Any = 512) -> onnx.ModelProto:
    """A transformer's feed-forward layer."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    return model(
        [
            node("MatMul", ["x", "w"], ["p"]),
            node("Add", ["p", "b"], ["q"]),
            node("Gelu", ["q"], ["g"], approximate="tanh"),
            node("MatMul", ["g", "v"], ["r"]),
            node("Add", ["r", "x"], ["s"]),
            node("LayerNormalization", ["s", "scale"], ["y"]),
        ],
        [value("x", [rows, 512], kind)],
        [value("y", [rows, 512], kind)],
        [
            zeros("w", 512, 1024, dtype=dtype),
            zeros("v", 1024, 512, dtype=dtype),
            zeros("b", 1024, dtype=dtype),
            zeros("scale", 512, dtype=dtype),
        ],
    )


def attention(kind: int = F32) -> onnx.ModelProto:
    names = ("q", "k", "v")
    return model(
        [node("Attention", list(names), ["y"], is_causal=1)],
        [value(name, [2, 4, 256, 64], kind) for name in names],
        [value("y", [2, 4, 256, 64], kind)],
        opsets={"": 23},
    )


def convolutions(kind: int = F32) -> onnx.ModelProto:
    """A dense, a depthwise and a pointwise convolution, and a pool."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    return model(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "d"], ["c"], pads=[1] * 4, group=64, strides=[2, 2]),
            node("Conv", ["c", "u"], ["e"]),
            node("MaxPool", ["e"], ["f"], kernel_shape=[3, 3], strides=[2, 2]),
            node("GlobalAveragePool", ["f"], ["y"]),
        ],
        [value("x", [2, 32, 56, 56], kind)],
        [value("y", None, kind)],
        [
            zeros("w", 64, 32, 3, 3, dtype=dtype),
            zeros("d", 64, 1, 3, 3, dtype=dtype),
            zeros("u", 128, 64, 1, 1, dtype=dtype),
        ],
    )


def bytes_() -> onnx.ModelProto:
    return model(
        [node("MatMulInteger", ["x", "w", "p"], ["y"])],
        [value("x", [1024, 1024], TensorProto.UINT8)],
        [value("y", [1024, 1024], TensorProto.INT32)],
        [zeros("w", 1024, 1024, dtype=np.int8), tensor("p", np.uint8(3))],
    )


def mixed_ops() -> onnx.ModelProto:
    """Sorting, gathering, scattering and sums along rows, with several dtypes."""
    results = {"top": F32, "places": TensorProto.INT64, "e": TensorProto.DOUBLE, "m": F32}
    return model(
        [
            node("Gather", ["x", "at"], ["g"]),
            node("TopK", ["g", "count"], ["top", "places"]),
            node("CumSum", ["g", "one"], ["c"]),
            node("ScatterElements", ["g", "at2", "updates"], ["s"], axis=1, reduction="add"),
            node("Softmax", ["s"], ["t"]),
            node("Cast", ["t"], ["wide"], to=TensorProto.DOUBLE),
            node("Erf", ["wide"], ["e"]),
            node("ReduceMax", ["c"], ["m"], keepdims=0),
        ],
        [value("x", [100, 300])],
        [value(name, None, kind) for name, kind in results.items()],
        [
            tensor("at", np.arange(50) % 7),
            tensor("count", np.int64([5])),
            tensor("one", np.int64(1)),
            tensor("at2", np.zeros((50, 3), np.int64)),
            zeros("updates", 50, 3),
        ],
    )


def quantized() -> onnx.ModelProto:
    """Products by weights of 4 bits, with zero points and without, for any number of rows."""

    def product(source: str, target: str, columns: int, depth: int, *zero: str) -> onnx.NodeProto:
        attributes = {"K": depth, "N": columns, "bits": 4, "block_size": 32}
        return node(
            "MatMulNBits", [source, f"{target}w", f"{target}s", *zero], [target], domain="com.microsoft", **attributes
        )

    return model(
        [product("x", "p", 1024, 512, "z"), product("p", "y", 512, 1024)],
        [value("x", ["rows", 512])],
        [value("y", ["rows", 512])],
        [
            zeros("pw", 1024, 16, 16, dtype=np.uint8),
            zeros("ps", 1024 * 16),
            zeros("z", 1024 * 8, dtype=np.uint8),
            zeros("yw", 512, 32, 16, dtype=np.uint8),
            zeros("ys", 512 * 32),
        ],
    )


def float8() -> onnx.ModelProto:
    """A product and a convolution of quantized floats of 8 bits."""
    kind = helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN)

    def quantize(source: str) -> list[onnx.NodeProto]:
        dequantized = node("DequantizeLinear", [f"{source}q", "one", "zero"], [f"{source}d"])
        return [node("QuantizeLinear", [source, "one", "zero"], [f"{source}q"]), dequantized]

    return model(
        [
            *quantize("x"),
            node("DequantizeLinear", ["w", "scales", "zeros"], ["wd"], axis=1),
            node("MatMul", ["xd", "wd"], ["y"]),
            *quantize("image"),
            node("DequantizeLinear", ["filters", "scales", "zeros"], ["fd"], axis=0),
            node("Conv", ["imaged", "fd"], ["z"], pads=[1] * 4),
        ],
        [value("x", ["rows", 1024]), value("image", [4, 64, 56, 56])],
        [value("y", None), value("z", None)],
        [
            zeros("w", 1024, 512, dtype=kind),
            zeros("filters", 512, 64, 3, 3, dtype=kind),
            zeros("scales", 512),
            zeros("zeros", 512, dtype=kind),
            tensor("one", np.float32(1)),
            zeros("zero", dtype=kind),
        ],
        opsets={"": 21},
    )


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "layer": layer,
    "layer_half": lambda: layer(F16),
    "layer_any_rows": lambda: layer(F32, "rows"),
    "attention": attention,
    "attention_half": lambda: attention(F16),
    "images": convolutions,
    "images_half": lambda: convolutions(F16),
    "bytes": bytes_,
    "odds": mixed_ops,
    "quantized": quantized,
    "float8": float8,
}
SINGLE = ("layer", "layer_any_rows", "attention", "images")  # float32 models, for which the precision matters
CASES = [
    *(("h200", precision, name) for precision in ("float32", "tf32", "fast", "strict") for name in SINGLE),
    *(("h200", "float32", name) for name in MODELS if name not in SINGLE),
    ("h200", "strict", "layer_half"),
    ("h200", "strict", "quantized"),
    ("h200", "fast", "float8"),
    ("a100", "float32", "float8"),
    ("h200 of 12.0", "float32", "bytes"),
    *(("a100", precision, name) for precision in ("float32", "tf32", "fast") for name in ("layer", "attention")),
    *(("a100", "float32", name) for name in ("layer_half", "attention_half", "images", "bytes", "quantized")),
    ("l40", "float32", "bytes"),
    ("l40", "fast", "float8"),
    *(("t4", "float32", name) for name in ("layer", "layer_half", "attention", "odds", "quantized")),
]
TILES = {"h200": "wgmma.mma_async", "a100": "mma.sync"}


@pytest.fixture(scope="session")
def assembled_kernels() -> set[tuple[str, str]]:
    """Kernels assembled by earlier tests, by processor and name."""
    return set()


@pytest.mark.parametrize(("gpu", "precision", "name"), CASES)
def test_models_assemble(
    attach: Attach, assembled_kernels: set[tuple[str, str]], gpu: str, precision: str, name: str
) -> None:
    assert PTXAS is not None
    driver = attach(GPUS[gpu])
    processor = str(choose_processor(GPUS[gpu]))
    kernels: dict[str, str] = {}
    driver.check = kernels.__setitem__
    weft.load(MODELS[name](), device="cuda", precision=precision, cache=False)
    assert kernels
    new = {kernel: text for kernel, text in kernels.items() if (processor, kernel) not in assembled_kernels}
    with ThreadPoolExecutor(2) as workers:
        logs = list(
            workers.map(lambda text: assemble(PTXAS, text, choose_processor(GPUS[gpu]).processor), new.values())
        )
    for (kernel, text), log in zip(new.items(), logs):
        if any(instruction in text for instruction in TILES.values()):
            assert " 0 bytes spill stores, 0 bytes spill loads" in log, f"{kernel}: {log}"
            assert "wgmma" not in log, f"{kernel}: {log}"
        assembled_kernels.add((processor, kernel))
    used = {instruction for instruction in TILES.values() for text in kernels.values() if instruction in text}
    if gpu == "t4" or name == "odds" or (precision == "strict" and name in SINGLE):
        assert not used
    elif gpu in TILES and (name.endswith("half") or name == "bytes" or precision in ("tf32", "fast")):
        assert ("mma.sync" if precision == "strict" else TILES[gpu]) in used  # parts of float32 may be cheaper without
    assert GPUS[gpu].capability == H200.capability or "wgmma.mma_async" not in used
