"""Tokenizers: special tokens, files that are wrong, and pieces of text that together are the whole.

`decode` is the package `tokenizers`; incremental decoding is weft's own, and is compared with it.
"""

from __future__ import annotations

import builtins
import json
import random
import sys
from pathlib import Path

import pytest
from generation.folders import train_tokenizer, write_files, write_json, write_tokenizer
from generation.real_tokenizers import REAL, open_real_tokenizer
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders

from weft.errors import InputError, InvalidModelError, MissingFileError, MissingPackageError, UnsupportedModelError
from weft.generation.text_stream import BYTE_TOKEN
from weft.generation.tokenizer import Tokenizer

KINDS = ["byte-level", "byte-fallback", "metaspace", "word-piece", "none"]
SAMPLES = (
    "plain text, don't stop .",
    " leading and trailing  ",
    "  two spaces",
    "👩‍🚀🎉🇨🇭 emoji",
    "e\u0301 combining \u0327",
    "你好，世界。日本語",
    "\n\n\ttabs\r\n",
    "\u200d\ufeff\x00\x7f",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff",
    "",
)


def random_text(numbers: random.Random) -> str:
    ranges = (
        (32, 126),
        (0x4E00, 0x9FFF),
        (0x1F300, 0x1FAFF),
        (0x300, 0x36F),
        (0x20, 0x20),
        (0x9, 0xD),
        (0x200B, 0x200F),
    )
    return "".join(chr(numbers.randint(*numbers.choice(ranges))) for _ in range(numbers.randrange(60)))


def check_stream(tokenizer: Tokenizer, tokens: list[int]) -> None:
    """Check that pieces are valid Unicode, and together what `decode` gives; twice, as a stream starts anew."""
    for skip_special in (True, False):
        stream = tokenizer.stream(skip_special)
        for _ in range(2):
            pieces = [stream.put(token) for token in tokens]
            pieces.append(stream.finish())
            assert "".join(pieces) == tokenizer.decode(tokens, skip_special), (tokens, pieces)
            assert all(piece.encode().decode() == piece for piece in pieces)


def check_random_streams(tokenizer: Tokenizer, count: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    for text in (*SAMPLES, *(random_text(numbers) for _ in range(count))):
        check_stream(tokenizer, tokenizer.encode(text))
    texts = {token: tokenizer.text_of(token) or "" for token in range(min(tokenizer.vocabulary, 1000))}
    byte_like = [token for token, text in texts.items() if len(text) == 1 or BYTE_TOKEN.fullmatch(text)]
    for _ in range(count):
        length = numbers.randrange(40)
        check_stream(tokenizer, [numbers.randrange(tokenizer.vocabulary + 9) for _ in range(length)])
        if byte_like:
            check_stream(tokenizer, numbers.choices(byte_like, k=length))


@pytest.mark.parametrize("model", REAL)
def test_streams_of_real_tokenizers(model: str) -> None:
    check_random_streams(open_real_tokenizer(model), 60)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_of_small_tokenizers(tmp_path: Path, kind: str) -> None:
    check_random_streams(Tokenizer.open(write_tokenizer(tmp_path, kind)), 60)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never"), decoders.Fuse()]),
        decoders.Sequence([decoders.Strip("e", 0, 1), decoders.Sequence([decoders.Fuse()]), decoders.Strip("T", 2, 0)]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")]),  # needs the whole text
        decoders.WordPiece(cleanup=False),
        decoders.BPEDecoder(suffix="e"),
        decoders.CTC(),
    ],
    ids=["fallback first", "strip", "whole", "word-piece", "bpe", "ctc"],
)
def test_streams_of_other_decoders(tmp_path: Path, decoder: decoders.Decoder) -> None:
    backend = train_tokenizer("byte-fallback")
    backend.decoder = decoder
    backend.save(str(tmp_path / "tokenizer.json"))
    check_random_streams(Tokenizer.open(tmp_path), 40)


def test_characters_of_several_tokens_come_whole(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(write_tokenizer(tmp_path))
    stream = tokenizer.stream()
    tokens = tokenizer.encode("a🦜b", special=False)
    assert [stream.put(token) for token in tokens] == ["a", "", "", "🦜", "b"]
    assert stream.finish() == ""
    stream.put(tokens[1])
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("model", REAL)
def test_real_tokenizers_restore_text(model: str) -> None:
    tokenizer = open_real_tokenizer(model)
    for text in SAMPLES:
        if model == "qwen3" and "e\u0301" in text:  # it composes characters
            continue
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_real_special_tokens() -> None:
    assert open_real_tokenizer("llama3_2").encode("a") == [128000, 64]
    assert open_real_tokenizer("llama3_2").encode("a", special=False) == [64]
    gemma = open_real_tokenizer("gemma3")
    assert gemma.encode("")[0] == gemma.id_of("<bos>") == 2
    qwen = open_real_tokenizer("qwen3")
    tokens = qwen.encode("a<|im_end|>b")
    assert qwen.id_of("<|im_end|>") in tokens
    assert (qwen.decode(tokens), qwen.decode(tokens, skip_special=False)) == ("ab", "a<|im_end|>b")


def test_added_tokens_of_the_configuration(tmp_path: Path) -> None:
    tokens = {"400": {"content": "<|new|>", "special": True}, "401": {"content": "<|plain|>", "special": False}}
    write_tokenizer(tmp_path, added_tokens_decoder=tokens, additional_special_tokens=["the"])
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.encode("<|new|><|plain|>", special=False) == [400, 401]
    assert tokenizer.decode([400, 401]) == "<|plain|>"
    assert (tokenizer.named_tokens["bos_token"], tokenizer.named_tokens["eos_token"]) == ("<s>", "</s>")
    write_tokenizer(tmp_path, added_tokens_decoder={"17": {"content": "<|new|>"}})
    with pytest.raises(InvalidModelError, match=r"the token '<\|new\|>' has the id 17 here, but 400 in tokenizer.json"):
        Tokenizer.open(tmp_path)


def test_special_tokens_map(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", {})
    write_json(tmp_path / "special_tokens_map.json", {"eos_token": {"content": "</s>"}, "bos_token": "<s>"})
    assert dict(Tokenizer.open(tmp_path).named_tokens) == {"eos_token": "</s>", "bos_token": "<s>"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, ["<s>", "T"]),
        ({"add_bos_token": True}, ["<s>", "T"]),
        ({"add_bos_token": False}, ["T"]),
        ({"add_eos_token": True}, ["<s>", "T", "</s>"]),
        ({"add_bos_token": False, "add_eos_token": True}, ["T", "</s>"]),
    ],
    ids=["default", "bos", "no bos", "eos", "only eos"],
)
def test_tokens_around_a_text(tmp_path: Path, flags: dict[str, bool], expected: list[str]) -> None:
    tokenizer = Tokenizer.open(write_tokenizer(tmp_path, **flags))
    assert [tokenizer.text_of(token) for token in tokenizer.encode("T")] == expected
    assert [tokenizer.text_of(token) for token in tokenizer.encode("T", special=False)] == ["T"]


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    backend = train_tokenizer("byte-level")
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.open(tmp_path)
    assert len(tokenizer.encode("a")) == 2
    assert tokenizer.decode(tokenizer.encode("abc " * 50)) == "abc " * 50


def test_vocabulary_and_merges(tmp_path: Path) -> None:
    """Build a tokenizer from GPT-2's two files, and compare it with the one they were written from."""
    backend = train_tokenizer("byte-level")
    backend.model.save(str(tmp_path))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>"})
    tokenizer = Tokenizer.open(tmp_path)
    for text in SAMPLES:
        assert tokenizer.encode(text) == backend.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer"})
    with pytest.raises(
        UnsupportedModelError, match=r"how a Qwen2Tokenizer splits words\n  hint: convert it where trans"
    ):
        Tokenizer.open(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"})
    (tmp_path / "merges.txt").write_text("a b c\n", encoding="utf-8")
    with pytest.raises(InvalidModelError, match=r"merges.txt: it is not a tokenizer"):
        Tokenizer.open(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(
        MissingFileError, match=r"has no tokenizer \(tokenizer.json is missing\)\n  hint: copy tokenizer"
    ):
        Tokenizer.open(tmp_path)
    write_files(tmp_path, ["tokenizer.model"])
    with pytest.raises(
        UnsupportedModelError, match=r"a sentencepiece tokenizer \(tokenizer.model\).*\n  hint: convert"
    ):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": {"type": "BPE", "vocab": 3}}', "{"])
def test_broken_tokenizers(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(InvalidModelError, match=r"tokenizer.json: "):
        Tokenizer.open(tmp_path)


def test_random_changes_of_tokenizers(tmp_path: Path) -> None:
    """Cut and change characters of tokenizer.json: it loads, or the error is weft's."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    content = (write_tokenizer(tmp_path, "byte-fallback") / "tokenizer.json").read_text(encoding="utf-8")
    fields = json.loads(content)
    for _ in range(60):
        changed = json.loads(content)
        name = numbers.choice(list(fields))
        changed[name] = numbers.choice(
            [None, {}, [], 3, "x", {"type": "Strip"}, {"type": "Metaspace"}, fields["decoder"]]
        )
        (tmp_path / "tokenizer.json").write_text(json.dumps(changed), encoding="utf-8")
        try:
            tokenizer = Tokenizer.open(tmp_path)
            check_stream(tokenizer, tokenizer.encode("Zürich 你好"))
        except (InvalidModelError, UnsupportedModelError):
            continue


def test_wrong_arguments(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(write_tokenizer(tmp_path))
    with pytest.raises(InputError, match="the text is 3, not a str"):
        tokenizer.encode(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a lone surrogate at character 1"):
        tokenizer.encode("a\ud800")
    for token in (-1, 1 << 40):
        with pytest.raises(InputError, match="but ids are from 0"):
            tokenizer.decode([token])
        with pytest.raises(InputError, match="but ids are from 0"):
            tokenizer.stream().put(token)
    with pytest.raises(InputError, match="a token is 'a', not an integer"):
        tokenizer.decode("a")  # type: ignore[arg-type]


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tokenizer(tmp_path)
    load = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name.partition(".")[0] == "tokenizers":
            raise ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")
        return load(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(
        MissingPackageError, match=r"needs the package tokenizers.*\n  hint: pip install 'weft-onnx\[text\]'"
    ):
        Tokenizer.open(tmp_path)


def test_small_tokenizers_are_what_their_kind_says() -> None:
    """Byte tokens are tokens of the model, not added ones: otherwise texts never contain them."""
    backend: BackendTokenizer = train_tokenizer("byte-fallback")
    assert "<0xF0>" in backend.encode("🦜").tokens
