"""Streams of requests: order, sequences, generated text, errors, and limits."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server import models
from waiting import wait_for

import weft
import weft.server
from weft.server.grpc.stream import MOST_REQUESTS, InferenceStream
from weft.server.run import BackgroundServer

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2", reason="tritonclient is not installed")
service_pb2_grpc = pytest.importorskip("tritonclient.grpc.service_pb2_grpc", reason="tritonclient is not installed")

SECONDS = 30  # in which anything must happen
LONG = {"max_tokens": 480, "regex": "[a-z ]{450}", "temperature": 0.0}  # of a text that does not end early


class Responses:
    """Collects the responses of a stream of Triton's client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._queue: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def __enter__(self) -> Responses:
        self._client.start_stream(lambda result, error: self._queue.put((result, error)))
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream()

    def next(self) -> Any:
        result, error = self._queue.get(timeout=SECONDS)
        assert error is None, error
        return result

    def next_error(self) -> str:
        result, error = self._queue.get(timeout=SECONDS)
        assert result is None
        return str(error)


def make_input(name: str, array: np.ndarray[Any, Any], datatype: str) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def make_prompt(text: str, stream: bool) -> list[Any]:
    prompt = make_input("text_input", np.array([text.encode()], object), "BYTES")
    return [prompt, make_input("stream", np.array([stream]), "BOOL")]


def is_final(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def test_responses_keep_the_order_of_requests(client: Any) -> None:
    random = np.random.default_rng(0)
    tensors = [random.normal(size=(random.integers(1, 40), 8)).astype(np.float32) for _ in range(2 * MOST_REQUESTS)]
    with Responses(client) as responses:
        for index, x in enumerate(tensors):
            name = ("dense", "versions")[index % 2]
            client.async_stream_infer(name, [make_input("x", x, "FP32")], request_id=str(index))
        for index, x in enumerate(tensors):
            result = responses.next()
            assert result.get_response().id == str(index)
            assert is_final(result)
            assert result.as_numpy("y").shape == (len(x), 4)


def test_errors_do_not_end_the_stream(client: Any) -> None:
    x = make_input("x", np.ones((1, 8), np.float32), "FP32")
    wrong = make_input("x", np.ones((1, 7), np.float32), "FP32")
    with Responses(client) as responses:
        client.async_stream_infer("dense", [x], request_id="a")
        client.async_stream_infer("dense", [wrong])
        client.async_stream_infer("absent", [x])
        client.async_stream_infer("dense", [x], sequence_id=4, sequence_start=True)
        client.async_stream_infer("dense", [x], request_id="b")
        assert responses.next().get_response().id == "a"
        assert "input 'x' takes FP32[-1, 8], and the request has [1, 7]" in responses.next_error()
        assert "Request for unknown model: 'absent'" in responses.next_error()
        assert "has no state" in responses.next_error()
        assert responses.next().get_response().id == "b"


def test_errors_carry_ids_and_come_in_order(server: BackgroundServer) -> None:
    requests = [service_pb2.ModelInferRequest(model_name="absent", id=str(index)) for index in range(5)]
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        responses = list(stub.ModelStreamInfer(iter(requests), timeout=SECONDS))
    assert [response.infer_response.id for response in responses] == list("01234")
    assert all(response.error_message for response in responses)


def test_sequences(client: Any) -> None:
    random = np.random.default_rng(1)
    steps = random.normal(size=(2, 20, 1, 3)).astype(np.float32)
    with Responses(client) as responses:
        for index in range(20):
            for number, key in enumerate((7, "eight")):
                client.async_stream_infer(
                    "counter",
                    [make_input("x", steps[number, index], "FP32")],
                    sequence_id=key,
                    sequence_start=index == 0,
                    sequence_end=index == 19,
                    timeout=10_000_000 if index % 3 else None,
                )
        totals = np.zeros((2, 1, 3), np.float32)
        for index in range(20):
            for number in range(2):
                totals[number] += steps[number, index]
                np.testing.assert_array_equal(responses.next().as_numpy("y"), totals[number])
        client.async_stream_infer("counter", [make_input("x", steps[0, 0], "FP32")], sequence_id=7)
        assert "there is no sequence 7" in responses.next_error()


class CallContext:
    """The context of a call whose messages are all there at once."""

    def __init__(self, requests: list[Any]) -> None:
        self._contents = [request.SerializeToString() for request in requests]
        self.responses: list[Any] = []

    async def read(self) -> bytes | None:
        return self._contents.pop(0) if self._contents else None

    async def write(self, content: bytes) -> None:
        self.responses.append(service_pb2.ModelStreamInferResponse.FromString(content))

    def time_remaining(self) -> None:
        return None


def test_requests_of_a_sequence_that_come_at_once(model_folder: Path) -> None:
    """Each runs after the one before, also where a limit of time delays the start of some."""
    requests = []
    for index in range(40):
        x = np.full((1, 3), index, np.float32)
        request = service_pb2.ModelInferRequest(model_name="counter", raw_input_contents=[x.tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=x.shape)
        request.parameters["sequence_id"].int64_param = 1
        request.parameters["sequence_start"].bool_param = index == 0
        request.parameters["timeout"].int64_param = index % 2 * 10_000_000
        requests.append(request)
    context = CallContext(requests)

    async def serve() -> None:
        app = weft.server.app({"counter": model_folder / "counter.onnx"}, poll=0, device="cpu")
        await app.start()
        await asyncio.wait_for(InferenceStream(app, context, None).serve(), SECONDS)
        await app.stop(1)

    asyncio.run(serve())
    totals = [np.frombuffer(each.infer_response.raw_output_contents[0], np.float32)[0] for each in context.responses]
    assert totals == np.cumsum(range(40)).tolist()


def test_text_comes_in_pieces(client: Any, story: weft.Generator) -> None:
    expected = str(story("Once upon", max_new_tokens=12, temperature=0.0))
    options = {"max_tokens": 12, "temperature": 0.0}
    for wants_final in (False, True):
        with Responses(client) as responses:
            client.async_stream_infer(
                "story",
                make_prompt("Once upon", stream=True),
                request_id="a",
                enable_empty_final_response=wants_final,
                parameters=options,
            )
            text, pieces = "", 0
            while text != expected:
                result = responses.next()
                assert result.get_response().id == "a"
                assert not is_final(result)
                text += result.as_numpy("text_output")[0].decode()
                pieces += 1
                assert expected.startswith(text)
            assert pieces > 3
            if wants_final:
                result = responses.next()
                assert is_final(result)
                assert result.get_response().id == "a"
                assert not result.get_response().outputs


def test_text_in_one_response(client: Any, story: weft.Generator) -> None:
    expected = str(story("Once upon", max_new_tokens=12, temperature=0.0))
    with Responses(client) as responses:
        for wants_final in (False, True):
            client.async_stream_infer(
                "story",
                make_prompt("Once upon", stream=False),
                enable_empty_final_response=wants_final,
                parameters={"max_tokens": 12, "temperature": 0.0},
            )
            result = responses.next()
            assert is_final(result)
            assert result.as_numpy("text_output")[0].decode() == expected
        client.async_stream_infer("story", make_prompt("Once upon", stream=True), parameters={"temperature": -1.0})
        assert "temperature" in responses.next_error()


def test_models_do_not_wait_for_text(client: Any) -> None:
    with Responses(client) as responses:
        client.async_stream_infer("story", make_prompt("Once", stream=False), parameters=LONG)
        client.async_stream_infer("dense", [make_input("x", np.ones((1, 8), np.float32), "FP32")], request_id="dense")
        assert responses.next().get_response().id == "dense"
        assert responses.next().as_numpy("text_output") is not None


def test_malformed_messages_do_not_end_the_stream(server: BackgroundServer) -> None:
    good = service_pb2.ModelInferRequest(model_name="absent", id="good").SerializeToString()
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        contents = list(call(iter([b"\xff\xff", b"", good, b"\x0a\xff\xff\xff\x7f"]), timeout=SECONDS))
    responses = [service_pb2.ModelStreamInferResponse.FromString(content) for content in contents]
    assert ["not a message" in response.error_message for response in responses] == [True, False, False, True]
    assert responses[2].infer_response.id == "good"


def test_memory_is_counted(client: Any, server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((4, 8000), np.float32)
    with Responses(client) as responses:
        with monkeypatch.context() as patch:
            patch.setattr(server.app.budget, "limit", 0)
            client.async_stream_infer("identity_FP32", [make_input("x", x, "FP32")])
            assert "out of memory" in responses.next_error()
        client.async_stream_infer("identity_FP32", [make_input("x", x, "FP32")])
        np.testing.assert_array_equal(responses.next().as_numpy("y"), x)
    assert server.app.budget.used == 0


def test_a_stream_without_requests_ends(server: BackgroundServer) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert list(stub.ModelStreamInfer(iter(()), timeout=SECONDS)) == []


def test_text_ends_when_its_client_leaves(server: BackgroundServer, story: weft.Generator) -> None:
    request = service_pb2.ModelInferRequest(model_name="story")
    for tensor in make_prompt("Once", stream=True):
        request.inputs.append(tensor._get_tensor())
        request.raw_input_contents.append(tensor._get_content())
    request.parameters["max_tokens"].int64_param = LONG["max_tokens"]
    request.parameters["regex"].string_param = LONG["regex"]
    request.parameters["temperature"].double_param = 0.0
    full = len(story("Once", max_new_tokens=480, regex=LONG["regex"], temperature=0.0).tokens)
    assert full > 100
    statistics = server.app.repository.get("story").statistics
    before = statistics.tokens_out
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request] * 3))
        next(call)
        call.cancel()
    wait_for(lambda: story.statistics.running == story.statistics.waiting == 0)
    wait_for(lambda: server.app.active == 0)
    assert 0 < statistics.tokens_out - before < 3 * full


def test_a_client_that_never_reads(slow_reader_server: BackgroundServer) -> None:
    """The requests that are read stay bounded, and the stream ends with an error."""
    app = slow_reader_server.app
    request = service_pb2.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(1 << 20)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1 << 18])

    with grpc.insecure_channel(slow_reader_server.grpc_address) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(repeat(request))
        wait_for(lambda: app.active > 1)
        counts = [app.active]
        while counts[-1]:
            assert len(counts) < 100 * SECONDS
            time.sleep(0.01)
            counts.append(app.active)
        with pytest.raises(grpc.RpcError) as failure:
            for _ in call:
                pass
    assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "does not read" in failure.value.details()
    assert 1 < max(counts) <= MOST_REQUESTS + 1
    assert app.budget.used == 0


@pytest.fixture
def slow_reader_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    path = models.write_identity(tmp_path_factory.mktemp("identity") / "identity.onnx", "float32")
    with weft.server.start({"identity": path}, poll=0, device="cpu", body_timeout=1.0) as server:
        yield server
