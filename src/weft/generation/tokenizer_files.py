"""Read the files of a tokenizer into a `tokenizers.Tokenizer`, with the special tokens of its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from weft.errors import InvalidModelError, MissingFileError, MissingPackageError, UnsupportedModelError, WeftError
from weft.generation.config_files import Config, read_config, read_optional_config, read_text_file
from weft.records import dataclass

if TYPE_CHECKING:
    import tokenizers

TOKENIZER, VOCABULARY, MERGES = "tokenizer.json", "vocab.json", "merges.txt"
SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm")
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FURTHER_TOKENS = ("additional_special_tokens", "extra_special_tokens")

GPT2_CLASSES = ("GPT2Tokenizer", "CodeGenTokenizer", "WhisperTokenizer")
GPT2_MODELS = ("gpt2", "gptj", "gpt_neo", "codegen", "whisper")

CONVERSION = (
    'convert it where transformers is installed: python -c "from transformers import AutoTokenizer as T; '
    "T.from_pretrained('FOLDER').save_pretrained('FOLDER')\""
)
MISSING_HINT = "copy tokenizer.json and tokenizer_config.json of the original model into the folder"
PACKAGES_HINT = "pip install 'weft-onnx[text]'"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer, its configuration, and the texts of its special tokens by name (`bos_token`, …)."""

    backend: tokenizers.Tokenizer
    config: Config
    named_tokens: Mapping[str, str]


def missing_package_error(package: str, purpose: str, error: ImportError) -> MissingPackageError:
    """Return the error for a package of the extra `text` that is not installed."""
    problem = f"{purpose} needs the package {package}, which is not installed"
    missing = MissingPackageError(problem, hint=PACKAGES_HINT)
    missing.__cause__ = error
    return missing


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read tokenizer.json, or vocab.json with merges.txt, and the configuration beside it."""
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        raise missing_package_error("tokenizers", "reading a tokenizer", error) from error
    config = read_optional_config(folder / "tokenizer_config.json")
    if (folder / TOKENIZER).is_file():
        backend = _read_tokenizer(folder / TOKENIZER)
    elif (folder / VOCABULARY).is_file() and (folder / MERGES).is_file():
        backend = _read_byte_level_tokenizer(folder, config)
    else:
        raise _missing_tokenizer_error(folder)
    backend.no_truncation()
    backend.no_padding()
    named = _read_named_tokens(config, read_optional_config(folder / "special_tokens_map.json"))
    _add_tokens(backend, config, named.values())
    _set_added_ends(backend, config, named)
    return TokenizerFiles(backend, config, named)


def call_library(function: Callable[..., Result], *arguments: Any, file: Path, **options: Any) -> Result:
    """Call a function of `tokenizers`; its plain exceptions and Rust panics become weft's errors."""
    try:
        return function(*arguments, **options)
    except (KeyboardInterrupt, SystemExit, MemoryError, WeftError):
        raise
    except BaseException as error:  # a Rust panic is no Exception
        problem = f"it is not a tokenizer that the package tokenizers can read: {str(error)[:300]}"
        raise InvalidModelError(problem, file=str(file), hint="fetch the file again, or upgrade tokenizers") from error


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer

    return call_library(Tokenizer.from_str, read_text_file(path), file=path)


def _read_byte_level_tokenizer(folder: Path, config: Config) -> tokenizers.Tokenizer:
    """Build a tokenizer of GPT-2's kind; other kinds split words in ways that these files do not state."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    kind = (config.text("tokenizer_class") or "").removesuffix("Fast")
    model_type = read_optional_config(folder / "config.json").text("model_type")
    if kind not in GPT2_CLASSES and (kind or model_type not in GPT2_MODELS):
        problem = f"{folder} has no {TOKENIZER}, and {VOCABULARY} does not say how a {kind or 'tokenizer'} splits words"
        raise UnsupportedModelError(problem, hint=CONVERSION)
    vocabulary = read_config(folder / VOCABULARY)
    for token in vocabulary.fields:
        vocabulary.integer(token, high=(1 << 32) - 1)
    lines = read_text_file(folder / MERGES).split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line.strip() and not line.startswith("#version")]
    model = call_library(models.BPE, dict(vocabulary.fields), merges, file=folder / MERGES)
    backend = Tokenizer(model)
    prefix = bool(config.flag("add_prefix_space"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    return backend


def _missing_tokenizer_error(folder: Path) -> WeftError:
    for name in SENTENCEPIECE_FILES:
        if (folder / name).is_file():
            problem = f"{folder} has a sentencepiece tokenizer ({name}), but no {TOKENIZER}"
            return UnsupportedModelError(problem, hint=CONVERSION)
    return MissingFileError(f"{folder} has no tokenizer ({TOKENIZER} is missing)", hint=MISSING_HINT)


# -- special tokens --------------------------------------------------------------------------------------------------


def _read_named_tokens(config: Config, token_map: Config) -> dict[str, str]:
    named = {}
    for name in NAMED_TOKENS:
        source = config if name in config.fields else token_map
        content = source.fields.get(name)
        if isinstance(content, dict):
            content = content.get("content")
        if content is None:
            continue
        if not isinstance(content, str):
            raise source.field_error(name, "a text or an object with the field content")
        named[name] = content
    return named


def _add_tokens(backend: tokenizers.Tokenizer, config: Config, named: Iterable[str]) -> None:
    """Add the tokens of the configuration that the tokenizer lacks, and mark special ones as such."""
    from tokenizers import AddedToken

    present = {(number, token.content, token.special) for number, token in backend.get_added_tokens_decoder().items()}
    entries = config.section("added_tokens_decoder")
    for key in sorted(entries.fields, key=lambda key: int(key) if key.isdecimal() else -1):
        entry = entries.section(key)
        content = entry.text("content")
        if not key.isdecimal() or not content:
            raise config.field_error("added_tokens_decoder", "an object of tokens by their ids")
        flags = {name: bool(entry.flag(name)) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        if (int(key), content, flags["special"]) in present:
            continue
        number = backend.token_to_id(content)
        if number is None:
            number = backend.get_vocab_size(with_added_tokens=True)
        if number != int(key):
            problem = f"the token {content!r} has the id {key} here, but {number} in {TOKENIZER}"
            raise InvalidModelError(problem, file=str(config.path), hint=MISSING_HINT)
        backend.add_tokens([AddedToken(content, **flags)])
    known_special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for content in (*named, *_read_further_tokens(config)):
        if content and content not in known_special and backend.token_to_id(content) is not None:
            backend.add_special_tokens([AddedToken(content, special=True, normalized=False)])


def _read_further_tokens(config: Config) -> Iterable[str]:
    for name in FURTHER_TOKENS:
        entries = config.fields.get(name)
        for entry in entries.values() if isinstance(entries, dict) else entries if isinstance(entries, list) else ():
            content = entry.get("content") if isinstance(entry, dict) else entry
            if isinstance(content, str):
                yield content


def _set_added_ends(backend: tokenizers.Tokenizer, config: Config, named: Mapping[str, str]) -> None:
    """Follow `add_bos_token` and `add_eos_token` where they differ from what tokenizer.json adds."""
    from tokenizers.processors import TemplateProcessing

    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    added = call_library(backend.encode, "", file=config.path).tokens
    tokens = {}
    has_changed = False
    for flag, name in (("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")):
        token = named.get(name)
        is_known = token is not None and backend.token_to_id(token) is not None
        is_present = token in added
        adds = is_present if flag not in config else bool(config.flag(flag)) and is_known
        has_changed = has_changed or adds != is_present
        if adds and token is not None:
            tokens[flag] = token
    if has_changed:
        start, end = tokens.get("add_bos_token"), tokens.get("add_eos_token")
        template = [*([start] if start else []), "$A", *([end] if end else [])]
        numbers = [(token, backend.token_to_id(token)) for token in dict.fromkeys(tokens.values())]
        backend.post_processor = TemplateProcessing(single=template, pair=None, special_tokens=numbers)
