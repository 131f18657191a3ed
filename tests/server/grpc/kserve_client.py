"""A program that KServe's users write: prints as JSON what its client gets from the server at an address."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest
from kserve.protocol.grpc.grpc_predict_v2_pb2 import RepositoryModelLoadRequest, RepositoryModelUnloadRequest
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub


def make_input(name: str, array: np.ndarray[Any, Any], datatype: str, is_binary: bool) -> InferInput:
    tensor = InferInput(name=name, shape=list(array.shape), datatype=datatype)
    tensor.set_data_from_numpy(array, binary_data=is_binary)
    return tensor


async def run(address: str) -> dict[str, Any]:
    left = np.arange(32, dtype=np.int32).reshape(2, 16)
    right = np.full((2, 16), 3, np.int32)
    halves = np.array([[0.5, -2.0]], np.float16)
    texts = np.array([[b"one", "zwölf".encode()]], object)
    report: dict[str, Any] = {}
    async with InferenceGRPCClient(url=address) as client:
        report["live"] = await client.is_server_live()
        report["ready"] = await client.is_server_ready()
        report["model"] = await client.is_model_ready("simple")
        for is_binary in (True, False):
            inputs = [
                make_input(name, each, "INT32", is_binary) for name, each in (("INPUT0", left), ("INPUT1", right))
            ]
            request = InferRequest(model_name="simple", infer_inputs=inputs, request_id="7")
            response = await client.infer(request)
            results = {output.name: output.as_numpy().tolist() for output in response.outputs}
            report[f"simple {is_binary}"] = [response.id, response.model_version, results]
            strings = InferRequest("identity_BYTES", [make_input("x", texts, "BYTES", is_binary)])
            output = (await client.infer(strings)).outputs[0].as_numpy()
            report[f"texts {is_binary}"] = [text if isinstance(text, str) else text.decode() for text in output.flat]
        response = await client.infer(InferRequest("identity_FP16", [make_input("x", halves, "FP16", is_binary=True)]))
        report["halves"] = response.outputs[0].as_numpy().tolist()
        try:
            await client.infer(InferRequest("absent", [make_input("x", halves, "FP16", is_binary=True)]))
        except grpc.RpcError as error:
            report["error"] = [error.code().name, error.details()]
    async with grpc.aio.insecure_channel(address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        unloaded = await stub.RepositoryModelUnload(RepositoryModelUnloadRequest(model_name="lengths"))
        loaded = await stub.RepositoryModelLoad(RepositoryModelLoadRequest(model_name="lengths"))
        report["loading"] = [unloaded.model_name, unloaded.isUnloaded, loaded.model_name, loaded.isLoaded]
    return report


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1]))))
