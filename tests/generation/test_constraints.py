"""Constraints: text sampled from random logits matches its schema, expression or grammar, as other libraries judge."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest

from weft.errors import ExecutionError, InputError, MissingPackageError
from weft.generation.constraints import ConstraintCompiler
from weft.generation.options import GenerationOptions
from weft.generation.sampler import SampledRow, Sampler

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("llguidance")

END = 300
VOCABULARY = 330  # more than the tokenizer has, as padded embeddings do
WORDS = ('{"', '":', '",', '"}', "true", "false", "null", "name", "age", " {", "[]", "12", "ab", "Ġa")


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, *WORDS])}
    vocabulary |= {f"<|unused{number}|>": number for number in range(len(vocabulary), END)}
    vocabulary["<|end|>"] = END
    result = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens(["<|end|>"])
    return result


@pytest.fixture(scope="module")
def compiler(tokenizer: tokenizers.Tokenizer) -> ConstraintCompiler:
    return ConstraintCompiler(tokenizer.to_str(), VOCABULARY, [END])


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler(VOCABULARY, "cpu")


def generate(
    tokenizer: tokenizers.Tokenizer, compiler: ConstraintCompiler, sampler: Sampler, seed: int, **keywords: object
) -> str:
    """Sample from random logits until the end token."""
    options = GenerationOptions.merge(keywords, temperature=0.7 if seed % 3 else 0.0)
    constraint = compiler.compile(options)
    assert constraint is not None
    random = np.random.default_rng(seed)
    row = SampledRow(options, seed, tokens := [1], 1)
    while len(tokens) < 400:
        row.allowed = constraint.mask()
        logits = random.normal(size=(1, VOCABULARY)).astype(np.float32) * 2
        for closing in ('"', "}", "]", '"}', "12"):  # so that strings and lists end
            logits[0, tokenizer.token_to_id(closing)] += 4
        logits[0, END] += 5
        token = int(sampler.choose(logits, [row]).tokens[0])
        if token == END:
            assert constraint.can_end
            return str(tokenizer.decode(tokens[1:]))
        constraint.accept(token)
        tokens.append(token)
    return ""


SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5},
    {"enum": ["red", "green", 3, None]},
    {
        "type": "object",
        "properties": {"tag": {"const": "x"}, "inner": {"$ref": "#/$defs/point"}},
        "required": ["tag", "inner"],
        "additionalProperties": False,
        "$defs": {
            "point": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                "required": ["x", "y"],
                "additionalProperties": False,
            }
        },
    },
    {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-c]{2,4}$"}]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_json_schema(
    schema: dict[str, object], tokenizer: tokenizers.Tokenizer, compiler: ConstraintCompiler, sampler: Sampler
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    complete = 0
    for seed in range(12):
        text = generate(tokenizer, compiler, sampler, seed, json_schema=schema)
        if text:
            jsonschema.validate(json.loads(text), schema)
            complete += 1
    assert complete >= 8


@pytest.mark.parametrize("pattern", ["[0-9]{3}-[a-f]+", "(yes|no)( indeed)?", "é😀?x"])
def test_regex(pattern: str, tokenizer: tokenizers.Tokenizer, compiler: ConstraintCompiler, sampler: Sampler) -> None:
    for seed in range(8):
        text = generate(tokenizer, compiler, sampler, seed, regex=pattern)
        assert re.fullmatch(pattern, text), text


def test_grammar(tokenizer: tokenizers.Tokenizer, compiler: ConstraintCompiler, sampler: Sampler) -> None:
    grammar = 'start: number (("+" | "*") number)*\nnumber: /[1-9][0-9]{0,3}/'
    for seed in range(8):
        text = generate(tokenizer, compiler, sampler, seed, grammar=grammar)
        assert re.fullmatch(r"[1-9]\d{0,3}([+*][1-9]\d{0,3})*", text), text


def test_masks_follow_tokens(tokenizer: tokenizers.Tokenizer, compiler: ConstraintCompiler) -> None:
    constraint = compiler.compile(GenerationOptions(regex="ab+"))
    assert constraint is not None

    def allowed() -> set[int]:
        bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    a, b, ab = (tokenizer.token_to_id(token) for token in ("a", "b", "ab"))
    assert a in allowed() <= {a, ab}  # canonical tokens only, where the text is forced
    constraint.accept(a)
    assert not constraint.can_end
    assert allowed() == {b}
    constraint.accept(b)
    assert constraint.can_end
    assert not constraint.is_finished
    assert allowed() == {b, END}
    branch = constraint.copy()
    assert branch.count_accepted([b, b, a]) == 2
    constraint.rollback(2)
    assert a in allowed() <= {a, ab}  # canonical tokens only, where the text is forced
    branch.accept(END)
    assert branch.is_finished
    with pytest.raises(ExecutionError, match="constraint"):
        constraint.accept(END)


def test_no_constraint(compiler: ConstraintCompiler) -> None:
    assert compiler.compile(GenerationOptions()) is None


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"json_schema": {"type": "strange"}}, "strange"),
        ({"regex": "[a-"}, "unclosed character class"),
        ({"grammar": "start: foo"}, "foo"),
    ],
)
def test_wrong_constraints(compiler: ConstraintCompiler, keywords: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        compiler.compile(GenerationOptions.merge(keywords))
    assert next(iter(keywords)) in str(caught.value)


def test_wrong_tokenizers() -> None:
    with pytest.raises(InputError, match="tokenizer"):
        ConstraintCompiler("{}", 10, [1])
    with pytest.raises(InputError, match="end token"):
        ConstraintCompiler("{}", 10, [])


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingPackageError, match=r"weft-onnx\[text\]"):
        ConstraintCompiler("{}", 10, [1])
