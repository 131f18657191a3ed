"""JSON schemas of the Open Inference Protocol and of the figures of the status page.

Objects may have further fields. Fields of requests that a handler ignores are not described.
"""

from __future__ import annotations

from typing import Any

from weft.server.v2.datatypes import NUMPY_TYPES
from weft.server.v2.inference import LARGEST_TIMEOUT

Schema = dict[str, Any]
STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
DATATYPE: Schema = {"type": "string", "enum": list(NUMPY_TYPES)}
LARGEST_SIZE = (1 << 31) - 1
MOST_DIMENSIONS = 32


def make_object(required: str = "", description: str = "", /, **properties: Schema) -> Schema:
    """Return the schema of an object.

    required: the names of the properties that it must have, or "*" for all.
    """
    schema: Schema = {"type": "object", "properties": properties}
    names = list(properties) if required == "*" else required.split()
    if names:
        schema["required"] = names
    if description:
        schema["description"] = description
    return schema


def make_array(items: Schema, **limits: Any) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": items, **limits}


def allow_null(schema: Schema) -> Schema:
    """Return the schema of the same values and null."""
    kind = schema["type"]
    schema = {**schema, "type": [*kind, "null"] if isinstance(kind, list) else [kind, "null"]}
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    return schema


def describe(schema: Schema, description: str) -> Schema:
    """Return a schema with a description."""
    return {**schema, "description": description}


def refer(kind: str, name: str) -> Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


SHAPE = make_array({"type": "integer", "minimum": 0, "maximum": LARGEST_SIZE}, maxItems=MOST_DIMENSIONS)
ELEMENTS = make_array({"type": ["number", "string", "boolean", "array"]})
STATED_SHAPE = make_array({"type": "integer", "minimum": -1})

TENSOR_PARAMETERS = make_object(
    "",
    "Parameters of a tensor",
    binary_data_size=describe(COUNT, "The bytes of the tensor, which follow the JSON instead of data"),
)
OUTPUT_PARAMETERS = make_object(
    "",
    "Parameters of an output",
    binary_data=describe(BOOLEAN, "Whether to send the tensor as bytes behind the JSON"),
    classification=describe(COUNT, "The number of the likeliest classes to send, as strings SCORE:INDEX"),
)
REQUEST_PARAMETERS = make_object(
    "",
    "Parameters of the request",
    timeout=describe(
        allow_null({**COUNT, "exclusiveMaximum": LARGEST_TIMEOUT}), "The most microseconds; 0 is the server's limit"
    ),
    sequence_id=describe({"type": ["integer", "string"]}, "The sequence whose state the request continues"),
    sequence_start=BOOLEAN,
    sequence_end=BOOLEAN,
    binary_data_output=describe(BOOLEAN, "Whether to send outputs as bytes unless they say so themselves"),
)
PHASE = make_object("*", "", count=COUNT, ns=COUNT)
CONFIG_TENSOR = make_object(
    "name data_type dims", "", name=STRING, data_type=STRING, dims=STATED_SHAPE, optional=BOOLEAN
)

GENERATION: dict[str, Schema] = {
    "max_tokens": {"type": ["integer", "null"], "minimum": 1},
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 1e30},
    "top_k": {"type": ["integer", "null"], "minimum": 0},
    "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
    "seed": {"type": ["integer", "null"]},
}

SCHEMAS: dict[str, Schema] = {
    "Error": make_object("error", "", error=describe(STRING, "What is wrong, and what to do")),
    "Live": make_object("live", "", live=BOOLEAN),
    "Ready": make_object("ready", "", ready=BOOLEAN),
    "ModelReady": make_object("*", "", name=STRING, ready=BOOLEAN),
    "NotReady": {"anyOf": [refer("schemas", name) for name in ("ModelReady", "Ready", "Error")]},
    "ServerMetadata": make_object("*", "", name=STRING, version=STRING, extensions=make_array(STRING)),
    "ModelNames": make_object("*", "", models=make_array(STRING)),
    "Regions": make_array({"type": "object"}, maxItems=0),
    "Empty": {"type": "object", "maxProperties": 0},
    "IndexRequest": make_object("", "", ready=describe(BOOLEAN, "Whether to list only models that are ready")),
    "Index": make_array(
        make_object(
            "name state reason",
            "",
            name=STRING,
            version=STRING,
            state={"type": "string", "enum": ["UNAVAILABLE", "LOADING", "READY"]},
            reason=STRING,
        )
    ),
    "LoadRequest": make_object(
        "", "", parameters={"description": "Accepted if it has neither a configuration nor files"}
    ),
    "TensorMetadata": make_object(
        "*", "", name=STRING, datatype=DATATYPE, shape=describe(STATED_SHAPE, "-1 is a dynamic size")
    ),
    "ModelMetadata": make_object(
        "*",
        "",
        name=STRING,
        versions=make_array(STRING),
        platform=STRING,
        inputs=make_array(refer("schemas", "TensorMetadata")),
        outputs=make_array(refer("schemas", "TensorMetadata")),
    ),
    "ModelConfig": make_object(
        "name platform backend max_batch_size input output",
        "The configuration of Triton that describes how the model is served",
        name=STRING,
        platform=STRING,
        backend=STRING,
        max_batch_size=describe(COUNT, "The most rows of a run; 0 if sizes of tensors include the batch"),
        input=make_array(CONFIG_TENSOR),
        output=make_array(CONFIG_TENSOR),
    ),
    "Statistics": make_object(
        "*",
        "",
        model_stats=make_array(
            make_object(
                "*",
                "",
                name=STRING,
                version=STRING,
                last_inference=describe(COUNT, "Milliseconds since 1970"),
                inference_count=describe(COUNT, "Rows"),
                execution_count=describe(COUNT, "Runs"),
                inference_stats=make_object(
                    "*",
                    "",
                    success=PHASE,
                    fail=PHASE,
                    queue=PHASE,
                    compute_input=PHASE,
                    compute_infer=PHASE,
                    compute_output=PHASE,
                    cache_hit=PHASE,
                    cache_miss=PHASE,
                ),
                batch_stats=make_array(
                    make_object(
                        "*", "", batch_size=COUNT, compute_input=PHASE, compute_infer=PHASE, compute_output=PHASE
                    )
                ),
            )
        ),
    ),
    "InferenceRequest": make_object(
        "inputs",
        "",
        id=describe(STRING, "Comes back in the response"),
        parameters=allow_null(REQUEST_PARAMETERS),
        inputs=make_array(
            make_object(
                "name datatype shape",
                "",
                name=STRING,
                datatype=DATATYPE,
                shape=SHAPE,
                data=describe(ELEMENTS, "The elements in row-major order, flat or nested"),
                parameters=allow_null(TENSOR_PARAMETERS),
            )
        ),
        outputs=describe(
            allow_null(make_array(make_object("name", "", name=STRING, parameters=allow_null(OUTPUT_PARAMETERS)))),
            "The outputs to send; all if there are none",
        ),
    ),
    "InferenceResponse": make_object(
        "model_name model_version outputs",
        "",
        model_name=STRING,
        model_version=STRING,
        id=STRING,
        outputs=make_array(
            make_object(
                "name datatype shape",
                "",
                name=STRING,
                datatype=DATATYPE,
                shape=SHAPE,
                data=describe(
                    make_array({"type": ["number", "string", "boolean", "null"]}),
                    "The elements in row-major order, flat; null is not a finite number",
                ),
                parameters=TENSOR_PARAMETERS,
            )
        ),
    ),
    "GenerateRequest": make_object(
        "text_input",
        "",
        text_input=STRING,
        exclude_input_in_output=describe(BOOLEAN, "Whether the answer leaves out the prompt; it does by default"),
        parameters=make_object("", "Options of generation, which may be fields of the request, too", **GENERATION),
    ),
    "GenerateResponse": make_object("*", "", model_name=STRING, model_version=STRING, text_output=STRING),
    "Events": {"description": "Server-sent events, whose data is JSON; those of OpenAI's protocol end with [DONE]"},
    "Status": make_object(
        "*",
        "",
        name=STRING,
        version=STRING,
        uptime=describe(NUMBER, "Seconds since the start"),
        ready=BOOLEAN,
        draining=describe(BOOLEAN, "Whether the server ends after the requests that it has"),
        active_requests=describe(COUNT, "Requests that are being answered, besides this one"),
        devices=make_array(STRING),
        memory=make_object(
            "*",
            "Bytes",
            limit=COUNT,
            models=describe(COUNT, "Weights of loaded models"),
            runs=describe(COUNT, "Runs and large requests now"),
        ),
        models=make_array(refer("schemas", "ModelStatus")),
    ),
    "ModelStatus": make_object(
        "name version state reason",
        "A version of a model; only those that are ready have figures",
        name=STRING,
        version=STRING,
        state={"type": "string", "enum": ["UNAVAILABLE", "LOADING", "READY"]},
        reason=describe(STRING, "Why the model is not ready"),
        kind={"type": "string", "enum": ["model", "generator", "embedder"]},
        device=STRING,
        memory=describe(COUNT, "Bytes that the model reserves"),
        active_requests=COUNT,
        queue_length=COUNT,
        requests=make_object("*", "", success=COUNT, failed=COUNT, rejected=COUNT, cancelled=COUNT),
        rows=COUNT,
        runs=COUNT,
        latency=make_object(
            "*",
            "Seconds of answered requests: all together, and estimates from a histogram",
            total=NUMBER,
            p50=allow_null(NUMBER),
            p99=allow_null(NUMBER),
        ),
        can_chat=describe(BOOLEAN, "Whether a generator has a chat template"),
        tokens=make_object("*", "", generated=COUNT, running_answers=COUNT),
    ),
}
