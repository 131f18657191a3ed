"""The Open Inference Protocol over HTTP, by Triton's client and by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from server import models

import weft
import weft.server
from weft.server.run import BackgroundServer
from weft.server.v2.datatypes import NUMPY_TYPES, to_bytes

triton = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    models.write_simple(folder / "simple.onnx")
    models.write_dense(folder / "dense.onnx")
    models.write_mixing(folder / "mixing.onnx")
    models.write_sequence_model(folder / "lengths.onnx")
    models.write_classifier(folder / "classifier.onnx")
    for datatype, dtype in models.TENSOR_TYPES.items():
        models.write_identity(
            folder / f"identity_{datatype}.onnx", "string" if datatype == "BYTES" else np.dtype(dtype).name
        )
    (folder / "versions" / "1").mkdir(parents=True)
    (folder / "versions" / "12").mkdir(parents=True)
    models.write_dense(folder / "versions" / "1" / "model.onnx", seed=1)
    models.write_dense(folder / "versions" / "12" / "model.onnx", seed=12)
    (folder / "broken.onnx").write_bytes(b"no model")
    (folder / "notes.txt").write_text("not a model")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[BackgroundServer]:
    with weft.server.start(folder, grpc=None, poll=0, device="cpu") as server:
        yield server


@pytest.fixture
def client(server: BackgroundServer) -> Any:
    return triton.InferenceServerClient(server.url.removeprefix("http://"))


@pytest.fixture
def http(server: BackgroundServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        yield client


def _input(name: str, array: np.ndarray[Any, Any], datatype: str, binary: bool = True) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def test_health_and_metadata(client: Any, http: httpx.Client) -> None:
    assert client.is_server_live()
    assert http.get("/v2/health/live").json() == {"live": True}
    assert http.get("/v2/health/ready").status_code == 503  # one model is broken
    assert client.is_model_ready("simple")
    assert not client.is_model_ready("broken")
    assert client.get_server_metadata()["name"] == "weft"
    metadata = client.get_model_metadata("simple")
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    config = client.get_model_config("simple")
    assert config["max_batch_size"] > 1
    assert config["input"][0] == {"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [16]}
    assert client.get_model_config("mixing")["max_batch_size"] == 0
    assert client.get_model_config("mixing")["input"][0]["dims"] == [-1, 4]


def test_index_names_all_models(client: Any) -> None:
    rows = {(row["name"], row.get("version")): row for row in client.get_model_repository_index()}
    assert rows["broken", "1"]["state"] == "UNAVAILABLE"
    assert "broken.onnx" in rows["broken", "1"]["reason"]
    assert rows["versions", "12"]["state"] == rows["versions", "1"]["state"] == "READY"
    assert not any(name == "notes" for name, _ in rows)


@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("binary_output", [True, False])
def test_simple_model_of_tritons_examples(client: Any, binary_input: bool, binary_output: bool) -> None:
    left, right = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
    inputs = [_input("INPUT0", left, "INT32", binary_input), _input("INPUT1", right, "INT32", False)]
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_output) for name in ("OUTPUT1", "OUTPUT0")]
    result = client.infer("simple", inputs, outputs=outputs, request_id="seven")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), left + right)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), left - right)
    assert result.get_response()["id"] == "seven"
    assert [output["name"] for output in result.get_response()["outputs"]] == ["OUTPUT1", "OUTPUT0"]


def test_asynchronous_requests(client: Any) -> None:
    x = np.arange(16, dtype=np.int32)[None]
    handles = [
        client.async_infer("simple", [_input("INPUT0", x * number, "INT32"), _input("INPUT1", x, "INT32")])
        for number in range(20)
    ]
    for number, handle in enumerate(handles):
        np.testing.assert_array_equal(handle.get_result().as_numpy("OUTPUT0"), x * number + x)


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compressed_bodies(client: Any, compression: str) -> None:
    x = np.random.default_rng(3).normal(size=(400, 8)).astype(np.float32)
    result = client.infer(
        "dense",
        [_input("x", x, "FP32")],
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    assert result.as_numpy("y").shape == (400, 4)


def test_versions(http: httpx.Client, folder: Path) -> None:
    x = np.random.default_rng(4).normal(size=(2, 8)).astype(np.float32)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 8], "data": x.tolist()}]}
    for version in ("1", "12"):
        answer = http.post(f"/v2/models/versions/versions/{version}/infer", json=body).json()
        expected = weft.load(folder / "versions" / version / "model.onnx", device="cpu")(x)
        assert answer["model_version"] == version
        np.testing.assert_array_equal(np.float32(answer["outputs"][0]["data"]).reshape(2, 4), expected)
    assert http.post("/v2/models/versions/infer", json=body).json()["model_version"] == "12"
    assert http.get("/v2/models/versions").json()["versions"] == ["1", "12"]
    missing = http.post("/v2/models/versions/versions/3/infer", json=body)
    assert missing.status_code == 404
    assert "'3'" in missing.json()["error"]


def _random_tensor(random: np.random.Generator, datatype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    dtype = np.dtype(models.TENSOR_TYPES[datatype])
    if datatype == "BYTES":
        texts = np.empty(shape, object)
        for place in np.ndindex(shape):
            texts[place] = "".join(random.choice(list('aé中\0\n"x'), 3))
        return texts
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return random.normal(size=shape).astype(dtype)


@pytest.mark.parametrize("datatype", models.TENSOR_TYPES)
def test_all_datatypes_come_back(http: httpx.Client, datatype: str) -> None:
    seed = 11
    random = np.random.default_rng(seed)
    url = f"/v2/models/identity_{datatype}/infer"
    for shape in ((1, 1), (3, 5), (2, 0), (0, 4)):
        array = _random_tensor(random, datatype, shape)
        content = bytes(to_bytes(array))
        entry = {"name": "x", "datatype": datatype, "shape": list(shape)}
        header = json.dumps(
            {
                "inputs": [{**entry, "parameters": {"binary_data_size": len(content)}}],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        answer = http.post(url, content=header + content, headers={"Inference-Header-Content-Length": str(len(header))})
        assert answer.status_code == 200, (seed, shape, answer.text)
        length = int(answer.headers["Inference-Header-Content-Length"])
        assert answer.content[length:] == content, (seed, shape)
        elements = array.astype(np.float32) if datatype == "BF16" else array
        answer = http.post(url, json={"inputs": [{**entry, "data": elements.tolist()}]})
        assert answer.status_code == 200, (seed, shape, answer.text)
        output = answer.json()["outputs"][0]
        assert output["shape"] == list(shape)
        again = np.array(output["data"], NUMPY_TYPES[datatype]).reshape(shape)
        assert bytes(to_bytes(again)) == content, (seed, shape)


def test_raw_body_is_the_only_input(http: httpx.Client, folder: Path) -> None:
    x = np.random.default_rng(5).normal(size=(1, 8)).astype(np.float32)
    headers = {"Inference-Header-Content-Length": "0", "Content-Type": "application/octet-stream"}
    answer = http.post("/v2/models/dense/infer", content=x.tobytes(), headers=headers)
    length = int(answer.headers["Inference-Header-Content-Length"])
    expected = weft.load(folder / "dense.onnx", device="cpu")(x)
    assert answer.content[length:] == expected.tobytes()
    lengths = np.random.default_rng(6).normal(size=(1, 7, 4)).astype(np.float32)
    answer = http.post("/v2/models/lengths/infer", content=lengths.tobytes(), headers=headers)
    assert json.loads(answer.content[: int(answer.headers["Inference-Header-Content-Length"])])["outputs"][0][
        "shape"
    ] == [1, 7, 6]
    assert http.post("/v2/models/simple/infer", content=b"1234", headers=headers).status_code == 400
    assert http.post("/v2/models/dense/infer", content=b"12345", headers=headers).status_code == 400


def test_classification(client: Any) -> None:
    x = np.random.default_rng(7).normal(size=(3, 8)).astype(np.float32)
    inputs = [_input("x", x, "FP32")]
    scores = client.infer("dense", inputs).as_numpy("y")
    result = client.infer("dense", inputs, outputs=[triton.InferRequestedOutput("y", class_count=2)]).as_numpy("y")
    for row, classes in zip(scores, result):
        best = np.argsort(-row, kind="stable")[:2]
        assert [entry.decode() for entry in classes] == [f"{row[index]:f}:{index}" for index in best]


def test_statistics_count_requests_and_rows(client: Any) -> None:
    before = client.get_inference_statistics("simple")["model_stats"][0]
    x = np.zeros((5, 16), np.int32)
    for _ in range(3):
        client.infer("simple", [_input("INPUT0", x, "INT32"), _input("INPUT1", x, "INT32")])
    after = client.get_inference_statistics("simple")["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 15
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 3
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert {batch["batch_size"] for batch in after["batch_stats"]} >= {5}


def test_metrics_have_tritons_names_and_our_own(http: httpx.Client) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    openmetrics = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="prometheus-client is not installed"
    )
    text = http.get("/metrics").text
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["nv_inference_request_success"].type == "counter"
    assert {sample.labels["model"] for sample in families["nv_inference_count"].samples} >= {"simple", "dense"}
    assert "weft_requests" in families
    assert families["weft_request_seconds"].type == "histogram"
    answer = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert any(family.name == "weft_rows" for family in openmetrics.text_string_to_metric_families(answer.text))


def _dense(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [0.0] * 8, **changes}]}


BAD_REQUESTS = {
    "no JSON": (b"{", "JSON"),
    "no object": (b"[]", "object"),
    "not UTF-8": (b'{"a": "\xff"}', "UTF-8"),
    "nested": (b"[" * 100_000, "nested"),
    "many digits": (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
    "no inputs": ({}, "inputs"),
    "missing input": ({"inputs": []}, "'x'"),
    "unknown input": (_dense(name="z"), "'z'"),
    "number as a name": (_dense(name=3), "name"),
    "unknown datatype": (_dense(datatype="FP8"), "FP8"),
    "other datatype": (_dense(datatype="FP64"), "FP32"),
    "wrong rank": (_dense(shape=[8]), "[-1, 8]"),
    "wrong size": (_dense(shape=[1, 7]), "[-1, 8]"),
    "negative size": (_dense(shape=[-1, 8]), "shape"),
    "huge size": (_dense(shape=[1 << 40, 8]), "shape"),
    "boolean size": (_dense(shape=[True, 8]), "shape"),
    "no shape": (_dense(shape=None), "shape"),
    "too few elements": (_dense(data=[1.0]), "8 elements"),
    "text as a number": (_dense(data=["a"] * 8), "'a'"),
    "null": (_dense(data=[None] * 8), "None"),
    "ragged": (_dense(data=[[1.0], [2.0, 3.0]]), "data"),
    "no data": ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8]}]}, "no data"),
    "object as data": (_dense(data={}), "data"),
    "twice": ({"inputs": _dense()["inputs"] * 2}, "twice"),
    "unknown output": ({**_dense(), "outputs": [{"name": "q"}]}, "'q'"),
    "outputs are texts": ({**_dense(), "outputs": ["y"]}, "outputs"),
    "flag is a text": ({**_dense(), "outputs": [{"name": "y", "parameters": {"binary_data": "no"}}]}, "binary_data"),
    "negative classes": ({**_dense(), "outputs": [{"name": "y", "parameters": {"classification": -1}}]}, "classes"),
    "bytes that are not there": (_dense(parameters={"binary_data_size": 32}), "binary_data_size"),
    "shared memory": (_dense(parameters={"shared_memory_region": "r"}), "shared memory"),
    "timeout": ({**_dense(), "parameters": {"timeout": -1}}, "timeout"),
    "sequence of a model without state": ({**_dense(), "parameters": {"sequence_id": 5}}, "state"),
    "id": ({**_dense(), "id": 5}, "id"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests_say_what_is_wrong(http: httpx.Client, case: str) -> None:
    body, word = BAD_REQUESTS[case]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = http.post("/v2/models/dense/infer", content=content)
    assert answer.status_code == 400, answer.text
    assert word in answer.json()["error"]


def test_bad_binary_requests(http: httpx.Client) -> None:
    def send(header: Any, tail: bytes, length: Any = None) -> httpx.Response:
        text = json.dumps(header).encode()
        size = str(len(text)) if length is None else length
        return http.post(
            "/v2/models/dense/infer", content=text + tail, headers={"Inference-Header-Content-Length": size}
        )

    binary = _dense(parameters={"binary_data_size": 32})
    del binary["inputs"][0]["data"]
    assert send(binary, bytes(32)).status_code == 200
    assert "bytes follow" in send(binary, bytes(33)).json()["error"]
    assert "31 bytes are left" in send(binary, bytes(31)).json()["error"]
    for length in ("-1", "x", "99999", "1e3", "²"):
        assert send(binary, bytes(32), length.encode()).status_code == 400
    binary["inputs"][0]["parameters"]["binary_data_size"] = 16
    assert "needs 32 bytes" in send(binary, bytes(16)).json()["error"]


def test_strings_that_end_early(http: httpx.Client) -> None:
    entry = {"name": "x", "datatype": "BYTES", "shape": [1, 2]}
    for content in (b"", b"\5\0\0\0ab", b"\1\0\0\0a", b"\1\0\0\0a\1\0\0\0bc", b"\xff\xff\xff\xffa"):
        header = json.dumps({"inputs": [{**entry, "parameters": {"binary_data_size": len(content)}}]}).encode()
        answer = http.post(
            "/v2/models/identity_BYTES/infer",
            content=header + content,
            headers={"Inference-Header-Content-Length": str(len(header))},
        )
        assert answer.status_code == 400, content


def test_paths_and_methods(http: httpx.Client) -> None:
    assert http.get("/nothing").status_code == 404
    assert http.get("/v2/models/none").status_code == 404
    assert http.post("/v2/models/none/infer", json={}).status_code == 404
    answer = http.get("/v2/models/dense/infer")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert http.head("/v2/health/live").status_code == 200
    assert http.get("/v2/health/live", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    assert http.post("/v2/models/broken/infer", json={}).status_code == 503


def test_damaged_compression(http: httpx.Client) -> None:
    url = "/v2/models/dense/infer"
    good = gzip.compress(json.dumps(_dense()).encode())
    assert http.post(url, content=good, headers={"Content-Encoding": "gzip"}).status_code == 200
    for content, encoding, status in (
        (good[:-4], "gzip", 400),
        (b"xyz", "gzip", 400),
        (good, "br", 415),
        (good + b"more", "gzip", 400),
    ):
        assert http.post(url, content=content, headers={"Content-Encoding": encoding}).status_code == status


def test_loading_and_unloading(client: Any, http: httpx.Client) -> None:
    client.unload_model("mixing")
    assert not client.is_model_ready("mixing")
    answer = http.post("/v2/models/mixing/infer", json={})
    assert answer.status_code == 400
    assert "unloaded" in answer.json()["error"]
    client.load_model("mixing")
    assert client.is_model_ready("mixing")
    assert "broken.onnx" in http.post("/v2/repository/models/broken/load").json()["error"]
    assert http.post("/v2/repository/models/none/load").status_code == 404
    assert http.post("/v2/repository/models/none/unload").status_code == 404


def test_outputs_that_are_no_tensors_are_left_out(client: Any, http: httpx.Client, folder: Path) -> None:
    x = np.random.default_rng(8).normal(size=(5, 4)).astype(np.float32)
    result = client.infer("classifier", [_input("x", x, "FP32")])
    expected = weft.load(folder / "classifier.onnx", device="cpu").run({"x": x})["label"]
    np.testing.assert_array_equal(result.as_numpy("label"), expected)
    assert [output["name"] for output in client.get_model_metadata("classifier")["outputs"]] == ["label"]
    assert client.get_model_config("classifier")["max_batch_size"] > 1  # the maps do not keep rows from being joined
    entry = {"name": "x", "datatype": "FP32", "shape": [5, 4], "data": x.ravel().tolist()}
    body = {"inputs": [entry], "outputs": [{"name": "probabilities"}]}
    answer = http.post("/v2/models/classifier/infer", json=body)
    assert answer.status_code == 400
    assert "no datatype" in answer.json()["error"]
