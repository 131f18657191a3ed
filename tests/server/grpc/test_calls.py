"""What clients do wrong, and what calls have in common: keys, limits, deadlines, health checks, TLS and the end."""

from __future__ import annotations

import asyncio
import queue
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server import models
from waiting import wait_for

import weft
import weft.server
from weft.errors import InputError, MissingPackageError
from weft.server.grpc import requests, start_grpc
from weft.server.run import BackgroundServer

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2", reason="tritonclient is not installed")
service_pb2_grpc = pytest.importorskip("tritonclient.grpc.service_pb2_grpc", reason="tritonclient is not installed")
utils = pytest.importorskip("tritonclient.utils", reason="tritonclient is not installed")

SECONDS = 30  # in which anything must happen
INFER = "/inference.GRPCInferenceService/ModelInfer"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
SERVICE = b"inference.GRPCInferenceService"
KEY = {"authorization": "Bearer secret"}
CODES = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}


@pytest.fixture(scope="session")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    """A server whose only model takes long, and which has a key and low limits."""
    path = models.write_slow(tmp_path_factory.mktemp("slow") / "slow.onnx", size=512)
    settings: dict[str, Any] = {"max_queue": 2, "max_body": 1 << 20, "batching": False, "allow_loading": False}
    with weft.server.start({"slow": path}, poll=0, device="cpu", api_key="secret", **settings) as server:
        yield server


@pytest.fixture
def slow_client(slow_server: BackgroundServer) -> Iterator[Any]:
    with triton.InferenceServerClient(slow_server.grpc_address) as client:
        yield client


def make_slow_input(rows: int) -> Any:
    tensor = triton.InferInput("x", [rows, 512], "FP32")
    tensor.set_data_from_numpy(np.ones((rows, 512), np.float32))
    return tensor


def collect(results: queue.Queue[Any], result: Any, error: Any) -> None:
    results.put((result, error))


# -- wrong requests --------------------------------------------------------------------------------------------------


def make_request(**fields: Any) -> Any:
    request = service_pb2.ModelInferRequest(model_name="simple", **fields)
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(bytes(64))
    return request


def remove_raw(request: Any) -> None:
    del request.raw_input_contents[1]


def send_short_bytes(request: Any) -> None:
    request.raw_input_contents[1] = bytes(63)


def send_long_bytes(request: Any) -> None:
    request.raw_input_contents[1] = bytes(128)


def send_both_forms(request: Any) -> None:
    request.inputs[0].contents.int_contents.extend([0] * 16)


def send_contents(request: Any, field: str, elements: list[Any], datatype: str = "INT32") -> None:
    del request.raw_input_contents[:]
    for tensor in request.inputs:
        tensor.datatype = datatype
        getattr(tensor.contents, field).extend(elements)


def send_two_lists(request: Any) -> None:
    send_contents(request, "int_contents", [0] * 16)
    request.inputs[0].contents.fp32_contents.append(1.0)


def send_no_data(request: Any) -> None:
    del request.raw_input_contents[:]


def set_shape(*shape: int) -> Callable[[Any], None]:
    def change(request: Any) -> None:
        request.inputs[0].shape[:] = shape

    return change


def set_field(target: str, name: str, content: Any) -> Callable[[Any], None]:
    def change(request: Any) -> None:
        setattr(request if target == "request" else request.inputs[0], name, content)

    return change


def set_parameter(name: str, choice: str, content: Any) -> Callable[[Any], None]:
    def change(request: Any) -> None:
        setattr(request.parameters[name], choice, content)

    return change


def set_classes(count: Any, choice: str = "int64_param") -> Callable[[Any], None]:
    def change(request: Any) -> None:
        setattr(request.outputs.add(name="OUTPUT0").parameters["classification"], choice, count)

    return change


def repeat_input(request: Any) -> None:
    request.inputs[1].name = "INPUT0"


def remove_input(request: Any) -> None:
    del request.inputs[1]
    del request.raw_input_contents[1]


def name_absent_output(request: Any) -> None:
    request.outputs.add(name="OUTPUT2")


def add_empty_parameter(request: Any) -> None:
    request.parameters["nothing"].SetInParent()


WRONG = {
    "one raw tensor too few": (remove_raw, "raw_input_contents has 1 tensors, and the request has 2 inputs"),
    "too few bytes": (send_short_bytes, "'INPUT1', INT32[1, 16]: needs 64 bytes, and 63 came"),
    "too many bytes": (send_long_bytes, "'INPUT1', INT32[1, 16]: needs 64 bytes, and 128 came"),
    "both forms": (send_both_forms, "'INPUT0': the request has raw_input_contents"),
    "two lists": (send_two_lists, "its elements belong in int_contents, and the request has some in fp32_contents"),
    "wrong list": (lambda each: send_contents(each, "int64_contents", [0] * 16), "its elements belong in int_contents"),
    "short list": (
        lambda each: send_contents(each, "int_contents", [0] * 15),
        "needs 16 elements, and int_contents has 15",
    ),
    "no data": (send_no_data, "needs 16 elements, and int_contents has 0"),
    "negative size": (set_shape(-1, 16), "shape must be a list of sizes"),
    "huge size": (set_shape(1 << 62, 16), "shape must be a list of sizes"),
    "huge product": (set_shape((1 << 31) - 1, 16), "needs 137438953408 bytes, and 64 came"),
    "wrong size": (set_shape(1, 15), "'INPUT0' takes INT32[-1, 16], and the request has [1, 15]"),
    "wrong rank": (set_shape(16), "'INPUT0' takes INT32[-1, 16], and the request has [16]"),
    "high rank": (set_shape(*[1] * 100), "at most 32 dimensions"),
    "wrong datatype": (set_field("input", "datatype", "FP32"), "'INPUT0' takes INT32, and the request has FP32"),
    "no datatype": (set_field("input", "datatype", "INT33"), "there is no datatype 'INT33'"),
    "absent input": (set_field("input", "name", "INPUT9"), "the model has no input 'INPUT9'"),
    "same input twice": (repeat_input, "'INPUT0' comes twice"),
    "missing input": (remove_input, "the request lacks input 'INPUT1'"),
    "absent output": (name_absent_output, "the model has no output 'OUTPUT2'"),
    "long name": (set_field("input", "name", "é" * 100_000), "the model has no input"),
    "absent version": (set_field("request", "model_version", "9"), "has no version '9'"),
    "empty parameter": (add_empty_parameter, "parameter 'nothing' has no value"),
    "negative timeout": (set_parameter("timeout", "int64_param", -1), "timeout must be a number of microseconds"),
    "text as timeout": (set_parameter("timeout", "string_param", "1"), "timeout must be a number of microseconds"),
    "number as id": (set_parameter("sequence_id", "double_param", 1.5), "sequence_id must be a number or a string"),
    "no state": (set_parameter("sequence_id", "int64_param", 1), "has no state"),
    "negative classes": (set_classes(-1), "classification must be a number of classes"),
    "text as classes": (set_classes("2", "string_param"), "classification must be a number of classes"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_wrong_requests(client: Any, case: str) -> None:
    change, message = WRONG[case]
    request = make_request()
    change(request)
    with pytest.raises(grpc.RpcError) as failure:
        client._client_stub.ModelInfer(request)
    assert failure.value.code() in CODES
    assert message in failure.value.details()


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_lists_have_no_half_floats(client: Any, datatype: str) -> None:
    request = service_pb2.ModelInferRequest(model_name=f"identity_{datatype}")
    request.inputs.add(name="x", datatype=datatype, shape=[1, 2]).contents.fp32_contents.extend([1.0, 2.0])
    with pytest.raises(grpc.RpcError, match=f"contents has no list for {datatype}"):
        client._client_stub.ModelInfer(request)


@pytest.mark.parametrize(
    ("datatype", "element"), [("INT8", 128), ("INT16", -32769), ("UINT8", 256), ("UINT16", 1 << 20)]
)
def test_elements_out_of_range(client: Any, datatype: str, element: int) -> None:
    request = service_pb2.ModelInferRequest(model_name=f"identity_{datatype}")
    contents = request.inputs.add(name="x", datatype=datatype, shape=[1, 2]).contents
    (contents.int_contents if datatype[0] == "I" else contents.uint_contents).extend([1, element])
    with pytest.raises(grpc.RpcError, match=f"{element} is out of range"):
        client._client_stub.ModelInfer(request)


def test_mutated_messages(server: BackgroundServer) -> None:
    """A message with random changes is answered, or refused as the client's fault."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    request = make_request(id="a")
    request.parameters["timeout"].int64_param = 10_000_000
    request.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    content = request.SerializeToString()
    answers, codes = 0, []
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary(INFER)
        for _ in range(400):
            mutant = bytearray(content)
            for _ in range(random.integers(1, 4)):
                start = int(random.integers(len(mutant)))
                stop = start + int(random.integers(0, 3))
                mutant[start:stop] = random.bytes(int(random.integers(0, 3)))
            try:
                response = service_pb2.ModelInferResponse.FromString(call(bytes(mutant), timeout=SECONDS))
            except grpc.RpcError as error:
                codes.append(error.code())
            else:
                assert response.model_name == "simple"
                answers += 1
    assert set(codes) <= {*CODES, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert min(answers, len(codes)) > 10


def test_unknown_calls(server: BackgroundServer) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel:
        for path in ("/inference.GRPCInferenceService/ModelTrain", "/other.Service/ModelInfer", "/"):
            with pytest.raises(grpc.RpcError) as failure:
                channel.unary_unary(path)(b"", timeout=SECONDS)
            assert failure.value.code() == grpc.StatusCode.UNIMPLEMENTED


# -- keys and limits -------------------------------------------------------------------------------------------------


def test_key(slow_client: Any, slow_server: BackgroundServer) -> None:
    assert slow_client.is_server_live()
    assert slow_client.is_server_ready()
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}, {"x-api-key": "secre"}):
        with pytest.raises(utils.InferenceServerException, match=r"UNAUTHENTICATED.*authorization: Bearer KEY"):
            slow_client.get_model_metadata("slow", headers=headers)
    for headers in (KEY, {"authorization": "bearer secret"}, {"x-api-key": "secret"}):
        assert slow_client.get_model_metadata("slow", headers=headers).name == "slow"
    with grpc.insecure_channel(slow_server.grpc_address) as channel:
        assert channel.unary_unary(CHECK)(b"") == SERVING
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as failure:
            next(stub.ModelStreamInfer(iter([service_pb2.ModelInferRequest()]), timeout=SECONDS))
        assert failure.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_loading_can_be_forbidden(slow_client: Any) -> None:
    for call in (slow_client.load_model, slow_client.unload_model):
        with pytest.raises(utils.InferenceServerException, match=r"PERMISSION_DENIED.*load and unload"):
            call("slow", headers=KEY)


@pytest.mark.parametrize("algorithm", [None, "gzip"])
def test_large_messages_are_refused(slow_client: Any, algorithm: str | None) -> None:
    """Also those that are small on the wire: zeros compress a thousandfold."""
    with pytest.raises(utils.InferenceServerException, match="RESOURCE_EXHAUSTED"):
        slow_client.infer("slow", [make_slow_input(20_000)], headers=KEY, compression_algorithm=algorithm)
    assert slow_client.is_server_live()


def test_memory_is_counted(slow_client: Any, slow_server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = slow_server.app.budget
    with monkeypatch.context() as patch:
        patch.setattr(budget, "limit", 0)
        with pytest.raises(utils.InferenceServerException, match=r"UNAVAILABLE.*out of memory"):
            slow_client.infer("slow", [make_slow_input(400)], headers=KEY)
    slow_client.infer("slow", [make_slow_input(40)], headers=KEY)
    wait_for(lambda: budget.used == 0)


def test_outputs_have_a_limit(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client._client_stub.ModelInfer(make_request())
    with monkeypatch.context() as patch:
        patch.setattr(requests, "MOST_OUTPUT", 127)  # each output has 64 bytes
        with pytest.raises(grpc.RpcError, match="outputs are larger than a message") as failure:
            client._client_stub.ModelInfer(make_request())
    assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_full_queue(slow_client: Any, slow_server: BackgroundServer) -> None:
    results: queue.Queue[Any] = queue.Queue()
    for _ in range(12):
        slow_client.async_infer("slow", [make_slow_input(300)], partial(collect, results), headers=KEY)
    errors = [error for _, error in (results.get(timeout=SECONDS) for _ in range(12)) if error is not None]
    assert 0 < len(errors) < 12
    for error in errors:
        assert error.status() == "StatusCode.UNAVAILABLE"
        assert "wait for this model" in error.message()
    wait_for(lambda: slow_server.app.active == 0)


def test_time(slow_client: Any, slow_server: BackgroundServer) -> None:
    batch = [make_slow_input(400)]
    with pytest.raises(utils.InferenceServerException, match=r"DEADLINE_EXCEEDED.*not done after"):
        slow_client.infer("slow", batch, headers=KEY, timeout=1)
    with pytest.raises(utils.InferenceServerException, match="DEADLINE_EXCEEDED"):
        slow_client.infer("slow", batch, headers=KEY, client_timeout=0.002)
    wait_for(lambda: slow_server.app.active == 0)


def test_cancelled_requests_leave(slow_client: Any, slow_server: BackgroundServer) -> None:
    statistics = slow_server.app.repository.get("slow").statistics
    before = statistics.cancel.count
    results: queue.Queue[Any] = queue.Queue()
    calls = [
        slow_client.async_infer("slow", [make_slow_input(400)], partial(collect, results), headers=KEY)
        for _ in range(2)
    ]
    wait_for(lambda: slow_server.app.active == 2)
    for call in calls:
        call.cancel()
    wait_for(lambda: slow_server.app.active == 0)
    assert statistics.cancel.count == before + 2
    wait_for(lambda: slow_server.app.budget.used == 0)


# -- health checks, TLS and the end ----------------------------------------------------------------------------------


def test_health_checks(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel:
        check = channel.unary_unary(CHECK)
        named = b"\x0a" + bytes([len(SERVICE)]) + SERVICE
        assert check(b"") == check(named) == SERVING
        with pytest.raises(grpc.RpcError) as failure:
            check(b"\x0a\x03abc")
        assert failure.value.code() == grpc.StatusCode.NOT_FOUND
        watch = channel.unary_stream(WATCH)(named, timeout=SECONDS)
        assert next(watch) == SERVING
        with monkeypatch.context() as patch:
            patch.setattr(server.app, "is_draining", True)
            assert next(watch) == NOT_SERVING
            assert check(b"") == NOT_SERVING
            with triton.InferenceServerClient(server.grpc_address) as client:
                assert client.is_server_live()
                assert not client.is_server_ready()
        assert next(watch) == SERVING
        watch.cancel()
        assert next(channel.unary_stream(WATCH)(b"\x0a\x03abc", timeout=SECONDS)) == b"\x08\x03"  # unknown


def test_stop_answers_what_has_arrived(tmp_path: Path) -> None:
    path = models.write_slow(tmp_path / "slow.onnx", size=512)
    results: queue.Queue[Any] = queue.Queue()
    streamed: queue.Queue[Any] = queue.Queue()
    server = weft.server.start({"slow": path}, poll=0, device="cpu", batching=False)
    with triton.InferenceServerClient(server.grpc_address) as client:
        expected = weft.load(path, device="cpu").run({"x": np.ones((300, 512), np.float32)})["y"]
        client.start_stream(partial(collect, streamed))
        channel = grpc.insecure_channel(server.grpc_address)
        watch = channel.unary_stream(WATCH)(b"")
        assert next(watch) == SERVING
        for _ in range(3):
            client.async_infer("slow", [make_slow_input(300)], partial(collect, results))
            client.async_stream_infer("slow", [make_slow_input(300)])
        statistics = server.app.repository.get("slow").statistics
        wait_for(lambda: statistics.success.count + server.app.active >= 7)  # six requests and a stream
        server.stop()
        for collected in (results, streamed):
            for _ in range(3):
                result, error = collected.get(timeout=SECONDS)
                assert error is None
                np.testing.assert_array_equal(result.as_numpy("y"), expected)
        assert "UNAVAILABLE" in str(streamed.get(timeout=SECONDS)[1])
        with pytest.raises(grpc.RpcError) as failure:
            list(watch)
        assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
        channel.close()


def test_stop_under_load(model_folder: Path) -> None:
    """Each request is answered, or refused so that its client may send it again."""
    server = weft.server.start({"simple": model_folder / "simple.onnx"}, poll=0, device="cpu")
    options = [("grpc.use_local_subchannel_pool", 1)]

    def call_until_refused() -> tuple[int, Any]:
        count = 0
        with grpc.insecure_channel(server.grpc_address, options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                while count < 100_000:
                    stub.ModelInfer(make_request(), timeout=SECONDS)
                    count += 1
            except grpc.RpcError as error:
                return count, error.code()
        return count, None

    with ThreadPoolExecutor(6) as pool:
        clients = [pool.submit(call_until_refused) for _ in range(6)]
        wait_for(lambda: server.app.repository.get("simple").statistics.success.count > 100)
        server.stop()
        results = [client.result(timeout=SECONDS) for client in clients]
    assert [code for _, code in results] == [grpc.StatusCode.UNAVAILABLE] * 6
    assert sum(count for count, _ in results) > 100


def test_ports_that_are_taken(server: BackgroundServer) -> None:
    async def start(host: str, port: int, tls: tuple[bytes, bytes] | None = None) -> None:
        await (await start_grpc(server.app, host, port, tls=tls)).stop()

    with pytest.raises(InputError, match=f"cannot listen on port {server.ports['grpc']} of 127.0.0.1"):
        asyncio.run(start("127.0.0.1", server.ports["grpc"]))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(InputError, match="cannot listen on port"):
            asyncio.run(start("127.0.0.1", other.getsockname()[1]))
    for port in (-1, 65536):
        with pytest.raises(InputError, match="from 0 to 65535"):
            asyncio.run(start("127.0.0.1", port))
    with pytest.raises(InputError, match="cannot listen on port 0 of not a host"):
        asyncio.run(start("not a host", 0))
    with pytest.raises(InputError, match="check the certificate"):
        asyncio.run(start("127.0.0.1", 0, (b"no certificate", b"no key")))


def test_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-out", str(certificate), "-keyout", str(key)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    app = weft.server.app({"simple": models.write_simple(tmp_path / "simple.onnx")}, poll=0, device="cpu")

    async def call() -> bool:
        server = await start_grpc(app, "127.0.0.1", 0, tls=(certificate.read_bytes(), key.read_bytes()))

        def check() -> bool:
            credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
            options = [("grpc.ssl_target_name_override", "localhost")]
            with triton.InferenceServerClient(
                f"127.0.0.1:{server.port}", creds=credentials, channel_args=options
            ) as client:
                return bool(client.is_server_live() and client.is_model_ready("simple"))  # loads the model

        try:
            return await asyncio.to_thread(check)
        finally:
            await server.stop(1)
            await app.stop(1)

    assert asyncio.run(call())


def test_without_grpcio(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MissingPackageError, match="serving over gRPC needs the package grpc"):
        asyncio.run(start_grpc(server.app, "127.0.0.1", 0))
