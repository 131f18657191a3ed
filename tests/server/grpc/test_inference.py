"""Single calls of the protocol over gRPC, by Triton's client; results are compared with runs of the models."""

from __future__ import annotations

import asyncio
import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server import models

import weft
from weft.server.run import BackgroundServer

triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
triton_aio = pytest.importorskip("tritonclient.grpc.aio", reason="tritonclient is not installed")
service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2", reason="tritonclient is not installed")
utils = pytest.importorskip("tritonclient.utils", reason="tritonclient is not installed")

CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def make_input(name: str, array: np.ndarray[Any, Any], datatype: str) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def make_simple_inputs(seed: int, rows: int = 1) -> tuple[list[Any], dict[str, np.ndarray[Any, Any]]]:
    random = np.random.default_rng(seed)
    arrays = {name: random.integers(-(2**31), 2**31, (rows, 16)).astype(np.int32) for name in ("INPUT0", "INPUT1")}
    return [make_input(name, array, "INT32") for name, array in arrays.items()], arrays


def random_tensor(datatype: str, random: np.random.Generator) -> np.ndarray[Any, Any]:
    shape = tuple(random.integers(0, 6, 2))
    dtype = np.dtype(models.TENSOR_TYPES[datatype])
    if datatype == "BYTES":
        texts = np.empty(shape, object)
        for place in np.ndindex(*shape):
            texts[place] = "".join(map(chr, random.integers(32, 0x2000, random.integers(0, 9)))).encode()
        return texts
    count = int(np.prod(shape))
    if datatype == "BOOL":
        return random.integers(0, 2, shape).astype(np.bool_)
    array = np.frombuffer(random.bytes(count * dtype.itemsize), dtype).reshape(shape)
    if dtype.kind in "fV":  # also infinities and denormals, but no NaN, whose bits a conversion may change
        array = np.where(np.isnan(array.astype(np.float64)), np.ones(shape, dtype), array).astype(dtype)
    return array


# -- metadata --------------------------------------------------------------------------------------------------------


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("versions", "12")
    assert not client.is_model_ready("absent")
    assert not client.is_model_ready("versions", "7")
    assert client.get_server_metadata(as_json=True)["name"] == "weft"
    metadata = client.get_model_metadata("simple", as_json=True)
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": ["-1", "16"]}
    assert client.get_model_metadata("versions").versions == ["1", "12"]


def test_config(client: Any) -> None:
    config = client.get_model_config("simple", as_json=True)["config"]
    assert config["max_batch_size"] > 1
    assert config["input"][0] == {"name": "INPUT0", "data_type": "TYPE_INT32", "dims": ["16"]}
    assert config["dynamic_batching"]["preferred_batch_size"] == [config["max_batch_size"]]
    assert client.get_model_config("story").config.model_transaction_policy.decoupled
    assert client.get_model_config("story").config.input[1].optional
    assert client.get_model_config("counter").config.HasField("sequence_batching")
    for datatype in models.TENSOR_TYPES:
        kind = client.get_model_config(f"identity_{datatype}", as_json=True)["config"]["input"][0]["data_type"]
        assert kind == f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}"


def test_statistics(client: Any) -> None:
    inputs, _ = make_simple_inputs(0, rows=3)
    before = client.get_inference_statistics("simple").model_stats[0]
    client.infer("simple", inputs)
    after = client.get_inference_statistics("simple", "1").model_stats[0]
    assert after.inference_count == before.inference_count + 3
    assert after.execution_count == before.execution_count + 1
    assert after.inference_stats.success.count == before.inference_stats.success.count + 1
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert 3 in [batch.batch_size for batch in after.batch_stats]
    assert {stats.name for stats in client.get_inference_statistics().model_stats} >= {"simple", "dense", "story"}
    assert len(client.get_inference_statistics("versions").model_stats) == 2


def test_load_and_unload(client: Any) -> None:
    client.unload_model("dense")
    assert not client.is_model_ready("dense")
    rows = {row.name: row for row in client.get_model_repository_index().models}
    assert rows["dense"].state == "UNAVAILABLE"
    assert rows["dense"].reason == "unloaded"
    client.load_model("dense")
    assert client.is_model_ready("dense")
    with pytest.raises(utils.InferenceServerException, match=r"NOT_FOUND.*there is no such model"):
        client.load_model("absent")
    with pytest.raises(utils.InferenceServerException, match=r"INVALID_ARGUMENT.*are the server's"):
        client.load_model("dense", config="{}")


def test_shared_memory(client: Any) -> None:
    assert not client.get_system_shared_memory_status().regions
    assert not client.get_cuda_shared_memory_status(as_json=True)
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    with pytest.raises(utils.InferenceServerException, match=r"UNIMPLEMENTED.*shared memory is not offered"):
        client.register_system_shared_memory("region", "/region", 64)
    with pytest.raises(utils.InferenceServerException, match=r"UNIMPLEMENTED.*shared memory is not offered"):
        client.register_cuda_shared_memory("region", b"aGFuZGxl", 0, 64)
    inputs, _ = make_simple_inputs(1)
    inputs[0].set_shared_memory("region", 64)
    with pytest.raises(utils.InferenceServerException, match="'INPUT0': shared memory is not offered"):
        client.infer("simple", inputs)
    output = triton.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory("region", 64)
    with pytest.raises(utils.InferenceServerException, match="'OUTPUT0': shared memory is not offered"):
        client.infer("simple", make_simple_inputs(1)[0], outputs=[output])


def test_settings_are_those_of_the_process(client: Any) -> None:
    for call in (client.get_trace_settings, client.get_log_settings):
        with pytest.raises(utils.InferenceServerException, match="UNIMPLEMENTED"):
            call()


# -- inference -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", list(models.TENSOR_TYPES))
def test_every_datatype_and_form(client: Any, model_folder: Path, datatype: str) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    name = f"identity_{datatype}"
    model = weft.load(model_folder / f"{name}.onnx", device="reference")
    for _ in range(8):
        array = random_tensor(datatype, random)
        if datatype == "BYTES":
            texts = np.vectorize(bytes.decode, otypes="O")(array)
            expected = np.vectorize(str.encode, otypes="O")(model.run({"x": texts})["y"])
            raw = utils.serialize_byte_tensor(array).item() if array.size else b""
        else:
            expected = model.run({"x": array})["y"]
            raw = array.tobytes()
        request = service_pb2.ModelInferRequest(model_name=name, id="7")
        request.inputs.add(name="x", datatype=datatype, shape=array.shape)
        forms = [request]
        if datatype in CONTENTS:
            forms.append(service_pb2.ModelInferRequest())
            forms[1].CopyFrom(request)
            getattr(forms[1].inputs[0].contents, CONTENTS[datatype]).extend(array.reshape(-1).tolist())
        request.raw_input_contents.append(raw)
        for form in forms:
            response = client._client_stub.ModelInfer(form)
            assert (response.model_name, response.model_version, response.id) == (name, "1", "7")
            assert response.outputs[0].datatype == datatype
            assert tuple(response.outputs[0].shape) == array.shape
            result = triton.InferResult(response).as_numpy("y")
            if datatype == "BF16":  # Triton's client makes it FP32
                np.testing.assert_array_equal(result, expected.astype(np.float32))
            else:
                assert result.dtype == expected.dtype
                np.testing.assert_array_equal(result, expected)


def test_booleans_of_other_bytes(client: Any) -> None:
    request = service_pb2.ModelInferRequest(model_name="identity_BOOL", raw_input_contents=[b"\x00\x01\x02\xff"])
    request.inputs.add(name="x", datatype="BOOL", shape=[2, 2])
    assert client._client_stub.ModelInfer(request).raw_output_contents == [b"\x00\x01\x01\x01"]


def test_strings_that_are_not_utf8(client: Any) -> None:
    array = np.array([[b"\xff\xfe", b"", b"caf\xc3\xa9", b"\x00"]], object)
    result = client.infer("identity_BYTES", [make_input("x", array, "BYTES")])
    assert result.as_numpy("y").tolist() == array.tolist()


def test_random_requests_equal_runs(client: Any, model_folder: Path) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    model = weft.load(model_folder / "lengths.onnx", device="cpu")
    results: queue.Queue[Any] = queue.Queue()
    expected = {}
    for index in range(60):
        x = random.normal(size=(*random.integers(1, 5, 2), 4)).astype(np.float32)
        expected[str(index)] = model.run({"x": x})
        client.async_infer(
            "lengths",
            [make_input("x", x, "FP32")],
            lambda result, error: results.put((result, error)),
            request_id=str(index),
        )
    for _ in expected:
        result, error = results.get(timeout=60)
        assert error is None
        for name, array in expected[result.get_response().id].items():
            assert result.as_numpy(name).tobytes() == array.tobytes()


def test_outputs_and_versions(client: Any, model_folder: Path) -> None:
    inputs, arrays = make_simple_inputs(3, rows=2)
    result = client.infer("simple", inputs, outputs=[triton.InferRequestedOutput("OUTPUT1")])
    assert [output.name for output in result.get_response().outputs] == ["OUTPUT1"]
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), arrays["INPUT0"] - arrays["INPUT1"])
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    for version, actual in (("1", "1"), ("12", "12"), ("", "12")):
        result = client.infer("versions", [make_input("x", x, "FP32")], model_version=version)
        assert result.get_response().model_version == actual
        expected = weft.load(model_folder / "versions" / actual / "model.onnx").run({"x": x})["y"]
        assert result.as_numpy("y").tobytes() == expected.tobytes()


def test_classification(client: Any, model_folder: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    result = client.infer(
        "dense", [make_input("x", x, "FP32")], outputs=[triton.InferRequestedOutput("y", class_count=2)]
    )
    scores = weft.load(model_folder / "dense.onnx").run({"x": x})["y"]
    expected = [[f"{row[index]:f}:{index}".encode() for index in np.argsort(-row)[:2]] for row in scores]
    assert result.as_numpy("y").tolist() == expected


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(client: Any, algorithm: str) -> None:
    inputs, arrays = make_simple_inputs(4, rows=500)
    result = client.infer("simple", inputs, compression_algorithm=algorithm)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), arrays["INPUT0"] + arrays["INPUT1"])


def test_keepalive(server: BackgroundServer) -> None:
    options = triton.KeepAliveOptions(
        keepalive_time_ms=200,
        keepalive_timeout_ms=5000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )
    inputs, arrays = make_simple_inputs(5)
    with triton.InferenceServerClient(server.grpc_address, keepalive_options=options) as client:
        for _ in range(3):
            result = client.infer("simple", inputs)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), arrays["INPUT0"] + arrays["INPUT1"])
            asyncio.run(asyncio.sleep(0.7))  # some pings


def test_asyncio_client(server: BackgroundServer) -> None:
    async def infer_many() -> None:
        async with triton_aio.InferenceServerClient(server.grpc_address) as client:
            assert await client.is_server_ready()
            requests = [make_simple_inputs(seed) for seed in range(20)]
            results = await asyncio.gather(*(client.infer("simple", inputs) for inputs, _ in requests))
            for result, (_, arrays) in zip(results, requests):
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), arrays["INPUT0"] + arrays["INPUT1"])

    asyncio.run(infer_many())


def test_text(client: Any, story: weft.Generator) -> None:
    prompt = make_input("text_input", np.array([b"Once upon"], object), "BYTES")
    result = client.infer("story", [prompt], parameters={"max_tokens": 6, "temperature": 0.0})
    expected = story("Once upon", max_new_tokens=6, temperature=0.0)
    assert result.as_numpy("text_output").tolist() == [str(expected).encode()]
