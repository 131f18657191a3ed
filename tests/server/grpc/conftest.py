"""A server of small models, and Triton's client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server import models

import weft
import weft.server
from weft.server.run import BackgroundServer

pytest.importorskip("grpc", reason="grpcio is not installed")
triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    models.write_simple(folder / "simple.onnx")
    models.write_dense(folder / "dense.onnx")
    models.write_counter(folder / "counter.onnx")
    models.write_sequence_model(folder / "lengths.onnx")
    for datatype, dtype in models.TENSOR_TYPES.items():
        kind = "string" if datatype == "BYTES" else np.dtype(dtype).name
        models.write_identity(folder / f"identity_{datatype}.onnx", kind)
    for number in (1, 12):
        (folder / "versions" / str(number)).mkdir(parents=True)
        models.write_dense(folder / "versions" / str(number) / "model.onnx", seed=number)
    return folder


@pytest.fixture(scope="session")
def story() -> Iterator[weft.Generator]:
    with weft.Generator() as generator:
        yield generator


@pytest.fixture(scope="session")
def server(model_folder: Path, story: weft.Generator) -> Iterator[BackgroundServer]:
    sources: dict[str, Any] = {path.stem: path for path in model_folder.iterdir()}
    with weft.server.start({**sources, "story": story}, poll=0, device="cpu") as server:
        yield server


@pytest.fixture
def client(server: BackgroundServer) -> Iterator[Any]:
    with triton.InferenceServerClient(server.grpc_address) as client:
        yield client
