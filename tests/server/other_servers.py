"""What test_other_servers.py runs in .clients: `python other_servers.py PART ARGUMENT`; results are JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np


async def use_kserve(url: str) -> dict[str, Any]:
    """Send requests with KServe's client for REST."""
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    report: dict[str, Any] = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model": await client.is_model_ready(url, "dense"),
        "absent": await client.is_model_ready(url, "absent"),
    }
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    for binary in (True, False):
        tensor = InferInput("x", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x, binary_data=binary)
        request = InferRequest("dense", [tensor], request_id="7", parameters={"binary_data_output": binary})
        response = await client.infer(url, request, model_name="dense")
        report[f"outputs {binary}"] = response.outputs[0].as_numpy().tolist()
        report[f"id {binary}"] = response.id
    await client.close()
    return report


def trace_request(path: str) -> dict[str, Any]:
    """Send a request to a server in this process, and return its spans."""
    from urllib.request import Request, urlopen

    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    import weft.server

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with weft.server.start(path, grpc=None, device="cpu") as server:
        headers = {"traceparent": parent, "X-Request-Id": "mine"}
        urlopen(Request(f"{server.url}/v2/models/dense", headers=headers)).read()
    span = exporter.get_finished_spans()[0]
    return {
        "name": span.name,
        "trace": f"{span.context.trace_id:032x}",
        "parent": f"{span.parent.span_id:016x}" if span.parent else "",
        "attributes": dict(span.attributes or {}),
    }


if __name__ == "__main__":
    parts = {"kserve": lambda argument: asyncio.run(use_kserve(argument)), "tracing": trace_request}
    print(json.dumps(parts[sys.argv[1]](sys.argv[2])))
