"""The OpenAPI document: it describes all routes, responses fit its schemas, and schemathesis finds no server error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from server import models
from server.openai.folders import write_embedding_folder

import weft
import weft.server
from weft.server.asgi import OPEN_PATHS
from weft.server.openapi.operations import OPERATIONS
from weft.server.run import BackgroundServer

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

CLIENTS = Path(__file__).parents[2] / ".clients" / "bin"
KEY = "a key"
SEED = 28
PATIENCE = 120.0  # seconds until a server that hangs fails a test
SPARE = "spare"  # the only model that clients load and unload
TENSOR_MODELS = ("simple", "dense", "counter", "texts")


@dataclass(frozen=True)
class Served:
    """A server that asks for a key, and its document."""

    server: BackgroundServer
    http: httpx.Client
    document: dict[str, Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    models.write_simple(folder / "simple.onnx")
    models.write_dense(folder / "dense.onnx")
    models.write_counter(folder / "counter.onnx")
    models.write_identity(folder / "texts.onnx", "string")
    models.write_identity(folder / f"{SPARE}.onnx", "float32")
    write_embedding_folder(folder / "vectors")
    settings: dict[str, Any] = {"grpc": None, "metrics": None, "poll": 0, "api_key": KEY}
    with (
        weft.Generator(max_batch=4) as generator,
        weft.server.start([str(folder), {"story": generator}], **settings) as server,
        httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=PATIENCE) as http,
    ):
        yield Served(server, http, http.get("/openapi.json").json())


def test_document_describes_all_routes(served: Served) -> None:
    routes = {(route.method, route.pattern) for route in served.server.app.router.routes}
    assert routes == OPERATIONS.keys()
    described = {(method.upper(), path) for path, methods in served.document["paths"].items() for method in methods}
    assert described == routes
    names = [
        operation["operationId"] for methods in served.document["paths"].values() for operation in methods.values()
    ]
    assert len(set(names)) == len(names)


def test_schemas_are_valid_and_references_exist(served: Served) -> None:
    components = served.document["components"]
    for schema in components["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    used = set(_references(served.document))
    for reference in used:
        _, _, kind, name = reference.split("/")
        assert name in components[kind]
    unused = {f"#/components/schemas/{name}" for name in components["schemas"]} - used
    assert not unused


def _references(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        if "$ref" in content:
            yield content["$ref"]
        for each in content.values():
            yield from _references(each)
    elif isinstance(content, list):
        for each in content:
            yield from _references(each)


def test_document_says_what_needs_the_key(served: Served) -> None:
    without_key = httpx.Client(base_url=served.server.url, timeout=PATIENCE)
    for path, methods in served.document["paths"].items():
        for method, operation in methods.items():
            is_open = operation.get("security") == []
            assert is_open == (path in OPEN_PATHS)
            address = path.replace("{model}", "simple").replace("{version}", "1")
            assert (without_key.request(method, address).status_code == 401) != is_open, path
            if not is_open:
                assert "401" in operation["responses"]
    without_key.close()


def test_document_of_an_open_server_has_no_key(tmp_path: Path) -> None:
    app = weft.server.app({"simple": models.write_simple(tmp_path / "simple.onnx")})
    from weft.server.openapi import make_document

    document = make_document(app.router.routes, has_key=False)
    assert "security" not in document
    assert "securitySchemes" not in document["components"]
    assert not [path for path in document["paths"].values() for each in path.values() if "401" in each["responses"]]


# -- responses fit the document --------------------------------------------------------------------------------------

ROW = {"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [0.5] * 8}
CALLS: tuple[tuple[str, str, str, Any, int], ...] = (  # method, pattern, path, body, status
    ("GET", "/", "", None, 200),
    ("GET", "/status.json", "", None, 200),
    ("GET", "/metrics", "", None, 200),
    ("GET", "/v2", "", None, 200),
    ("GET", "/v2/health/live", "", None, 200),
    ("GET", "/v2/health/ready", "", None, 200),
    ("GET", "/v2/models", "", None, 200),
    ("GET", "/v2/models/stats", "", None, 200),
    ("GET", "/v2/models/{model}", "/v2/models/dense", None, 200),
    ("GET", "/v2/models/{model}", "/v2/models/none", None, 404),
    ("GET", "/v2/models/{model}/config", "/v2/models/counter/config", None, 200),
    ("GET", "/v2/models/{model}/ready", "/v2/models/dense/ready", None, 200),
    ("GET", "/v2/models/{model}/versions/{version}/stats", "/v2/models/dense/versions/1/stats", None, 200),
    ("GET", "/v2/systemsharedmemory/status", "", None, 200),
    ("POST", "/v2/repository/index", "", {"ready": True}, 200),
    ("POST", "/v2/models/{model}/infer", "/v2/models/dense/infer", {"inputs": [ROW]}, 200),
    ("POST", "/v2/models/{model}/infer", "/v2/models/dense/infer", {"inputs": [{**ROW, "shape": [2, 8]}]}, 400),
    ("POST", "/v2/models/{model}/generate", "/v2/models/story/generate", {"text_input": "Once", "max_tokens": 3}, 200),
    ("POST", "/v2/models/{model}/generate", "/v2/models/dense/generate", {"text_input": "Once"}, 400),
    ("GET", "/v1/models", "", None, 200),
    ("GET", "/v1/models/{model}", "/v1/models/story", None, 200),
    ("GET", "/v1/models/{model}", "/v1/models/dense", None, 404),
    (
        "POST",
        "/v1/chat/completions",
        "",
        {"model": "story", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "logprobs": True},
        200,
    ),
    ("POST", "/v1/completions", "", {"model": "story", "prompt": "Once", "max_tokens": 3, "logprobs": 1}, 200),
    ("POST", "/v1/embeddings", "", {"model": "vectors", "input": ["fox"]}, 200),
    ("POST", "/v1/embeddings", "", {"model": "story", "input": ["fox"]}, 400),
)


@pytest.mark.parametrize(("method", "pattern", "path", "body", "status"), CALLS)
def test_responses_fit_the_document(
    served: Served, method: str, pattern: str, path: str, body: Any, status: int
) -> None:
    answer = served.http.request(method, path or pattern, json=body)
    assert answer.status_code == status, answer.text
    operation = served.document["paths"][pattern][method.lower()]
    if body is not None and status == 200:
        _validate(served.document, operation["requestBody"]["content"]["application/json"]["schema"], body)
    response = _resolve(served.document, operation["responses"][str(status)])
    for name in response["headers"]:
        assert name in answer.headers or name in ("Inference-Header-Content-Length", "Retry-After")
    kind = answer.headers["content-type"].partition(";")[0]
    schema = response["content"][kind]["schema"]
    _validate(served.document, schema, answer.json() if kind == "application/json" else answer.text)


DENSE, STORY = "/v2/models/dense/infer", "/v2/models/story/generate"
WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (  # path, body, part of the message
    (DENSE, {}, "inputs"),
    (DENSE, {"inputs": [{**ROW, "name": 1}]}, "name"),
    (DENSE, {"inputs": [{**ROW, "datatype": "FLOAT"}]}, "datatype"),
    (DENSE, {"inputs": [{**ROW, "shape": [1, -8]}]}, "shape"),
    (DENSE, {"inputs": [{**ROW, "shape": [True, 8]}]}, "shape"),
    (DENSE, {"inputs": [{**ROW, "data": {}}]}, "data"),
    (DENSE, {"inputs": [{**ROW, "parameters": {"binary_data_size": -1}}]}, "binary_data_size"),
    (DENSE, {"inputs": [ROW], "id": 1}, "id"),
    (DENSE, {"inputs": [ROW], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "binary_data"),
    (DENSE, {"inputs": [ROW], "outputs": [{"name": "y", "parameters": {"classification": False}}]}, "classification"),
    (DENSE, {"inputs": [ROW], "parameters": {"timeout": False}}, "timeout"),
    (DENSE, {"inputs": [ROW], "parameters": {"timeout": 0.5}}, "timeout"),
    (DENSE, {"inputs": [ROW], "parameters": {"sequence_id": False}}, "sequence_id"),
    (STORY, {"text_input": ["Once"]}, "text_input"),
    (STORY, {"text_input": "Once", "exclude_input_in_output": 1}, "exclude_input_in_output"),
    (STORY, {"text_input": "Once", "parameters": {"temperature": "hot"}}, "temperature"),
    (STORY, {"text_input": "Once", "parameters": {"max_tokens": 0}}, "max_new_tokens"),
)


@pytest.mark.parametrize(("path", "body", "problem"), WRONG, ids=range(len(WRONG)))
def test_what_the_document_forbids_is_refused(served: Served, path: str, body: dict[str, Any], problem: str) -> None:
    name = "InferenceRequest" if path == DENSE else "GenerateRequest"
    with pytest.raises(jsonschema.ValidationError):
        _validate(served.document, served.document["components"]["schemas"][name], body)
    answer = served.http.post(path, json=body)
    assert answer.status_code == 400
    assert problem in answer.json()["error"]


@pytest.mark.parametrize("datatype", ["FP32", "INT32"])
def test_a_boolean_among_numbers_is_refused(served: Served, datatype: str) -> None:
    model, name, width = ("dense", "x", 8) if datatype == "FP32" else ("simple", "INPUT0", 16)
    row = [0] * (width - 1) + [True]
    for data in (row, [row]):
        entry = {"name": name, "datatype": datatype, "shape": [1, width], "data": data}
        answer = served.http.post(f"/v2/models/{model}/infer", json={"inputs": [entry]})
        assert answer.status_code == 400
        assert f"data has True, which is not a {datatype}" in answer.json()["error"]


def test_integers_of_more_than_64_bits_are_numbers(served: Served) -> None:
    answers = [
        served.http.post(DENSE, json={"inputs": [{**ROW, "data": [number, 0.5, *[0] * 6]}]}).json()["outputs"]
        for number in (10**30, 1e30)
    ]
    assert answers[0] == answers[1]
    huge = {"inputs": [{**ROW, "data": [10**400, *[0] * 7]}]}
    assert served.http.post(DENSE, json=huge).status_code == 400


def _resolve(document: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in content:
        return content
    _, _, kind, name = content["$ref"].split("/")
    resolved: dict[str, Any] = document["components"][kind][name]
    return resolved


def _validate(document: dict[str, Any], schema: dict[str, Any], content: Any) -> None:
    jsonschema.Draft202012Validator({**document, **schema}).validate(content)


# -- schemathesis ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schemathesis() -> str:
    command = shutil.which("schemathesis", path=os.pathsep.join((str(CLIENTS), os.environ.get("PATH", ""))))
    if command is None:
        pytest.skip("no schemathesis here: neither in .clients/bin nor in PATH")
    return command


def test_schemathesis_finds_no_error(served: Served, schemathesis: str, tmp_path: Path) -> None:
    """All endpoints, with wrong requests, too. What a model accepts is not in the document, so 400 is no failure."""
    document = _name_models(served)
    _run(schemathesis, served, document, tmp_path, 3, "--exclude-checks", "positive_data_acceptance")


def test_schemathesis_requests_that_fit_models_are_answered(served: Served, schemathesis: str, tmp_path: Path) -> None:
    """Inference, described for each model by its metadata, and text: requests that fit are answered, others refused."""
    paths = {f"/v2/models/{name}/infer": {"post": _describe_inference(served, name)} for name in TENSOR_MODELS}
    paths["/v1/chat/completions"] = {"post": _describe_chat(served.document)}
    document = {**served.document, "paths": paths}
    _run(schemathesis, served, document, tmp_path, 6, "--phases", "coverage,fuzzing")


def _run(command: str, served: Served, document: Mapping[str, Any], folder: Path, count: int, *options: str) -> None:
    file = folder / "openapi.json"
    file.write_text(json.dumps(document))
    arguments = [command, "run", str(file), "--url", served.server.url, "--header", f"Authorization: Bearer {KEY}"]
    arguments += ["--checks", "all", "--max-examples", str(count), "--seed", str(SEED), "--request-timeout", "60"]
    arguments += ["--no-color", "--continue-on-failure", "--suppress-health-check", "all", *options]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    assert "Server error" not in done.stdout
    tested = next(line for line in done.stdout.splitlines() if "Tested:" in line)
    assert int(tested.split()[1]) == sum(map(len, document["paths"].values()))


def _name_models(served: Served) -> dict[str, Any]:
    """Return the document with the names of models that there are, so that requests reach them."""
    document: dict[str, Any] = json.loads(json.dumps(served.document))
    components = document["components"]
    parameter = components["parameters"]["model"]
    parameter["schema"] = {"enum": [*TENSOR_MODELS, "story", "vectors"]}
    components["parameters"]["version"]["schema"] = {"enum": ["1"]}
    for action in ("load", "unload"):
        operation = document["paths"][f"/v2/repository/models/{{model}}/{action}"]["post"]
        operation["parameters"] = [{**parameter, "schema": {"enum": [SPARE]}}]
    for name, model in (("Chat", "story"), ("Completion", "story"), ("Embeddings", "vectors")):
        components["schemas"][f"{name}Request"]["properties"]["model"] = {"enum": [model]}
    inputs = components["schemas"]["InferenceRequest"]["properties"]["inputs"]["items"]
    inputs["properties"]["name"]["enum"] = ["x", "INPUT0", "INPUT1", "state", "text_input"]
    return document


def _describe_inference(served: Served, model: str) -> dict[str, Any]:
    """Return the operation that runs a model, with its inputs as schemas: two rows, and three for dynamic sizes."""
    elements: dict[str, dict[str, Any]] = {
        "FP32": {"type": "number"},
        "BYTES": {"type": "string"},
        "INT32": {"enum": [-(2**31), -1, 0, 28, 2**31 - 1]},  # for JSON schemas, 1.0 is an integer, too
    }
    entries = []
    for info in served.http.get(f"/v2/models/{model}").json()["inputs"]:
        shape = [2 if axis == 0 else 3 if size < 0 else size for axis, size in enumerate(info["shape"])]
        count = shape[0] * shape[1]
        data = {"type": "array", "items": elements[info["datatype"]], "minItems": count, "maxItems": count}
        properties = {
            "name": {"enum": [info["name"]]},
            "datatype": {"enum": [info["datatype"]]},
            "shape": {"enum": [shape]},
            "data": data,
        }
        entries.append({"type": "object", "required": list(properties), "properties": properties})
    count = len(entries)
    inputs = {"type": "array", "prefixItems": entries, "items": False, "minItems": count, "maxItems": count}
    body = {"type": "object", "required": ["inputs"], "properties": {"inputs": inputs, "id": {"type": "string"}}}
    operation = served.document["paths"]["/v2/models/{model}/infer"]["post"]
    return {
        "operationId": f"run_{model}",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": operation["responses"],
    }


def _describe_chat(document: dict[str, Any]) -> dict[str, Any]:
    """Return the operation of a chat with the demo model, with the fields that go with any others."""
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty", "seed", "stop")
    names += ("max_tokens", "logprobs", "stream")
    message = {"role": {"enum": ["system", "user", "assistant"]}, "content": {"type": "string"}}
    required = {
        "model": {"enum": ["story"]},
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "object", "required": list(message), "properties": message},
        },
    }
    optional = {name: document["components"]["schemas"]["ChatRequest"]["properties"][name] for name in names}
    body = {"type": "object", "required": list(required), "properties": {**optional, **required}}
    operation = document["paths"]["/v1/chat/completions"]["post"]
    return {**operation, "requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}
