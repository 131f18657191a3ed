"""JSON schemas of OpenAI's protocol, as far as the server implements it."""

from __future__ import annotations

from weft.server.openai.chat_request import MOST_TOP_LOGPROBS
from weft.server.openai.sampling import LARGEST_SEED, MOST_ANSWERS
from weft.server.openapi.schemas import (
    BOOLEAN,
    COUNT,
    NUMBER,
    STRING,
    Schema,
    allow_null,
    describe,
    make_array,
    make_object,
)


def make_choice(*choices: str) -> Schema:
    """Return the schema of one of several strings."""
    return {"type": "string", "enum": list(choices)}


def _limit(kind: str, low: float, high: float) -> Schema:
    return allow_null({"type": kind, "minimum": low, "maximum": high})


MODEL = describe(STRING, "The name of a model")
FLAG = allow_null(BOOLEAN)
TEXT = allow_null(STRING)
TOKENS = make_array(COUNT, minItems=1)
TEXTS: Schema = {
    "anyOf": [
        {"type": "string"},
        make_array(STRING, minItems=1),
        TOKENS,
        make_array(TOKENS, minItems=1),
    ],
    "description": "A text, or tokens, or a list of either",
}
STREAM_OPTIONS = allow_null(
    make_object("", "Only with stream", include_usage=describe(FLAG, "Whether the last event has the usage"))
)
SAMPLING = {
    "n": _limit("integer", 1, MOST_ANSWERS),
    "temperature": _limit("number", 0, 100),
    "top_p": _limit("number", 0, 1),
    "top_k": describe(_limit("integer", -1, 1 << 31), "-1 and 0 keep all tokens"),
    "min_p": _limit("number", 0, 1),
    "presence_penalty": _limit("number", -2, 2),
    "frequency_penalty": _limit("number", -2, 2),
    "repetition_penalty": _limit("number", 1e-6, 1e6),
    "seed": _limit("integer", -LARGEST_SEED, LARGEST_SEED),
    "stop": {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": "string", "minLength": 1}},
            {"type": "null"},
        ],
        "description": "Texts that end an answer",
    },
    "logit_bias": describe(
        allow_null({"type": "object", "additionalProperties": _limit("number", -100, 100)}), "By token"
    ),
    "stream": describe(FLAG, "Whether to send the answer as events, as it is generated"),
    "stream_options": STREAM_OPTIONS,
    "response_format": allow_null(
        make_object(
            "type",
            "Constrains the answer to JSON",
            type=make_choice("text", "json_object", "json_schema"),
            json_schema=allow_null(
                make_object(
                    "name", "", name=STRING, schema={"type": ["object", "boolean", "string", "null"]}, strict=FLAG
                )
            ),
        )
    ),
}
MOST_TOKENS = _limit("integer", 1, 1 << 31)
FUNCTION = make_object("name", "", name=STRING, arguments={"type": ["string", "object", "null"]})
CONTENT_PART = make_object(
    "type", "", type=make_choice("text", "input_text", "output_text", "refusal"), text=TEXT, refusal=TEXT
)
MESSAGE = make_object(
    "role",
    "",
    role=make_choice("system", "developer", "user", "assistant", "tool"),
    content={"anyOf": [STRING, make_array(CONTENT_PART), {"type": "null"}]},
    name=TEXT,
    tool_call_id=TEXT,
    tool_calls=allow_null(make_array(make_object("function", "", id=TEXT, function=FUNCTION))),
)
TOOL = make_object(
    "type function",
    "",
    type=make_choice("function"),
    function=make_object(
        "name",
        "",
        name={"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"},
        description=TEXT,
        parameters=describe({"type": ["object", "null"]}, "The JSON schema of the arguments"),
    ),
)
USAGE = make_object(
    "prompt_tokens total_tokens",
    "",
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=make_object("*", "", cached_tokens=COUNT),
)
FINISH = {"enum": ["stop", "length", "tool_calls", None]}
ANSWER = make_object(
    "role content",
    "",
    role=make_choice("assistant"),
    content=TEXT,
    refusal={"type": "null"},
    reasoning_content=STRING,
    tool_calls=make_array(
        make_object(
            "*",
            "",
            id=STRING,
            type=make_choice("function"),
            function=make_object("*", "", name=STRING, arguments=STRING),
        )
    ),
)
MODEL_INFO = make_object("*", "", id=STRING, object=make_choice("model"), created=COUNT, owned_by=STRING)

TEXT_SCHEMAS: dict[str, Schema] = {
    "TextError": make_object(
        "*",
        "",
        error=make_object(
            "*", "", message=describe(STRING, "What is wrong, and what to do"), type=STRING, param=TEXT, code=TEXT
        ),
    ),
    "TextModel": MODEL_INFO,
    "TextModels": make_object("*", "", object=make_choice("list"), data=make_array(MODEL_INFO)),
    "ChatRequest": make_object(
        "model messages",
        "",
        model=MODEL,
        messages=make_array(MESSAGE, minItems=1),
        max_completion_tokens=MOST_TOKENS,
        max_tokens=MOST_TOKENS,
        logprobs=FLAG,
        top_logprobs=describe(_limit("integer", 0, MOST_TOP_LOGPROBS), "Only with logprobs"),
        tools=allow_null(make_array(TOOL)),
        tool_choice={
            "anyOf": [make_choice("none", "auto", "required"), {"type": "object"}, {"type": "null"}],
            "description": "Whether the answer calls a tool, or which one",
        },
        parallel_tool_calls=FLAG,
        reasoning_effort=TEXT,
        chat_template_kwargs=describe({"type": ["object", "null"]}, "Variables of the chat template"),
        **SAMPLING,
    ),
    "ChatResponse": make_object(
        "*",
        "",
        id=STRING,
        object=make_choice("chat.completion"),
        created=COUNT,
        model=STRING,
        choices=make_array(
            make_object(
                "*",
                "",
                index=COUNT,
                message=ANSWER,
                logprobs=allow_null(make_object("content", "", content=make_array({"type": "object"}))),
                finish_reason=FINISH,
            )
        ),
        usage=USAGE,
    ),
    "CompletionRequest": make_object(
        "model prompt",
        "",
        model=MODEL,
        prompt=TEXTS,
        max_tokens=MOST_TOKENS,
        logprobs=_limit("integer", 0, MOST_TOP_LOGPROBS),
        echo=describe(FLAG, "Whether answers begin with their prompt; only without logprobs"),
        **SAMPLING,
    ),
    "CompletionResponse": make_object(
        "*",
        "",
        id=STRING,
        object=make_choice("text_completion"),
        created=COUNT,
        model=STRING,
        choices=make_array(
            make_object("*", "", text=STRING, index=COUNT, logprobs={"type": ["object", "null"]}, finish_reason=FINISH)
        ),
        usage=USAGE,
    ),
    "EmbeddingsRequest": make_object(
        "model input",
        "",
        model=MODEL,
        input=TEXTS,
        encoding_format=allow_null(make_choice("float", "base64")),
        dimensions=describe(_limit("integer", 1, 1 << 31), "The first values to keep, normalized again"),
    ),
    "EmbeddingsResponse": make_object(
        "*",
        "",
        object=make_choice("list"),
        data=make_array(
            make_object(
                "*",
                "",
                object=make_choice("embedding"),
                index=COUNT,
                embedding={"anyOf": [make_array(NUMBER), describe(STRING, "Little-endian float32 as base64")]},
            )
        ),
        model=STRING,
        usage=USAGE,
    ),
}
