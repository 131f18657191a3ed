"""Strings: tokens, expressions, cases and n-grams, against onnxruntime and its locales."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from opset.oracle import check, node_model, run_onnxruntime, run_weft

from weft.backends.reference.host.expressions import compile_expression
from weft.errors import ExecutionError, InvalidModelError

Array = np.ndarray[Any, Any]
MICROSOFT: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}
WORDS = [
    *"the The THE a quick Fox's e-mail naïve Über ßtraße 日本 x_y 12.5 İx ǅ .. a,b;c ﬀ 😀k é K a-b a..b ab bab".split(),
    "",
    "tab\tbed",
    "new\nline",
    "end\n",
    " lead",
    "trail ",
    "two  spaces",
    "\x0b",
    "\xa0nb",
]
EXPRESSIONS = (
    r"[a-zA-Z]+ \w+ \b\w\w+\b \S+ [[:alpha:]]+ [[:^alpha:]]+ \pL+ "
    r"[\p{Lu}x] \PL+ a|b|the (?i)the|fox (?i:T)he x* [a-z]$ "
    r"^\w+ (?m)^\w+$ \d+(\.\d+)? [^\s] \s+ [\s,]+ [\W]+ \Qa,b\E (?s).+ .+ . (a)(?P<n>b)? []a]+ a(?i)b|c \x{e9}|\x61 "
    r"(?-i)a \D+ t[h-i]e a{1,2} ..? \z [&~|]|-- a(?:b|c)?".split()
)
SEPARATORS = [" ", ",", r"\.", "[ ,]", "-", r"\s", "the", r"\s+", "a|e", "", "é", "[[:punct:]]", r"\b", "  ", "(?i)x"]


def texts(*strings: str) -> Array:
    array = np.empty(len(strings), object)
    array[:] = strings
    return array


def phrases(random: Random, count: int) -> Array:
    return texts(
        *(random.choice(["", " ", "-"]).join(random.choices(WORDS, k=random.randint(0, 5))) for _ in range(count))
    )


@pytest.mark.parametrize("seed", range(40))
def test_tokens_like_onnxruntime(seed: int) -> None:
    random = Random(seed)
    x = phrases(random, random.randint(1, 4))
    x = x.reshape(-1, 1) if random.random() < 0.4 else x
    way: dict[str, Any] = {"tokenexp": random.choice(EXPRESSIONS)}
    if random.random() < 0.5:
        way = {"separators": random.choice([[""], [random.choice(SEPARATORS)], random.sample(SEPARATORS, 3)])}
    characters = way.get("tokenexp") == "." or way.get("separators") == [""]
    least = 1 if characters else random.choice([1, 1, 2, 3])
    marks = {"mark": random.randint(0, 1), "mincharnum": least, "pad_value": random.choice(["#", "", "<pad>"])}
    check("Tokenizer", [x], **way, **marks, **MICROSOFT)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_like_onnxruntime(expression: str) -> None:
    check("RegexFullMatch", [texts(*WORDS)], opset=20, pattern=expression)


def test_an_expression_of_python_with_classes_of_unicode() -> None:
    """CountVectorizer's default, which skl2onnx exports and onnxruntime refuses."""
    assert compile_expression(r"(?u)\b\w\w+\b").findall("Ein Übermaß, né?") == ["Ein", "Übermaß", "né"]


@pytest.mark.parametrize("expression", ["(", "(?U)a+", r"\p{Greek}", "[[:what:]]", "[a", r"\x{110000}", r"\C"])
def test_what_is_no_expression_is_an_error_that_shows_it(expression: str) -> None:
    with pytest.raises(ExecutionError, match="is not a valid regular expression"):
        compile_expression(expression)


def test_single_characters_have_no_least_length() -> None:
    with pytest.raises(InvalidModelError, match="mincharnum"):
        check(
            "Tokenizer",
            [texts("ab")],
            separators=[""],
            mark=0,
            mincharnum=2,
            pad_value="",
            expected=[None],
            **MICROSOFT,
        )


@pytest.mark.parametrize(
    ("locale", "case", "expected"),  # as glibc's locales have it
    [
        ("C", "LOWER", "Über iİiıß ǅ ﬀ ΑΣ ᾳ"),
        ("C", "UPPER", "ÜBER IİIıß ǅ ﬀ ΑΣ ᾳ"),
        ("en_US.UTF-8", "LOWER", "über iiiıß ǆ ﬀ ασ ᾳ"),
        ("en_US.UTF-8", "UPPER", "ÜBER IİIIß Ǆ ﬀ ΑΣ ᾼ"),
        ("tr_TR.UTF-8", "LOWER", "über ıiiıß ǆ ﬀ ασ ᾳ"),
        ("tr_TR.UTF-8", "UPPER", "ÜBER IİİIß Ǆ ﬀ ΑΣ ᾼ"),
    ],
)
def test_each_character_changes_case_on_its_own(locale: str, case: str, expected: str) -> None:
    x = texts("ÜBER Iİiıß ǅ ﬀ ΑΣ ᾳ")
    check("StringNormalizer", [x], opset=10, case_change_action=case, locale=locale, expected=[texts(expected)])


def test_words_that_stop_are_compared_character_by_character() -> None:
    x = texts("STRASSE", "straße", "Straße", "THE")
    check("StringNormalizer", [x], opset=10, stopwords=["STRAßE", "the"], expected=[texts("STRASSE")])


@pytest.mark.parametrize("seed", range(30))
def test_n_grams_like_onnxruntime(seed: int) -> None:
    random = Random(seed)
    words: list[Any] = random.choice([list(range(6)), ["a", "b", "c", "the", "é", ""]])
    longest = random.randint(1, 3)
    shortest = random.randint(1, longest)
    pool: list[Any] = []
    starts: list[int] = []
    for length in range(1, longest + 1):
        starts.append(len(pool))
        grams = {tuple(random.choices(words, k=length)) for _ in range(random.randint(1, 4))}
        pool += [element for gram in sorted(grams) for element in gram]
    ends = [*starts[1:], len(pool)]
    count = sum((end - start) // length for length, (start, end) in enumerate(zip(starts, ends), 1))
    places = random.sample(range(count), count)
    weights = {"weights": [random.uniform(-1, 2) for _ in places]} if random.random() < 0.5 else {}
    shape = random.choice([(7,), (1, 5), (3, 6)])
    x = np.empty(shape, object)
    x[...] = np.array([*random.choices(words, k=x.size), None], object)[:-1].reshape(shape)
    x = x.astype(random.choice([np.int32, np.int64])) if isinstance(words[0], int) else x
    check(
        "TfIdfVectorizer",
        [x],
        opset=9,
        min_gram_length=shortest,
        max_gram_length=longest,
        max_skip_count=random.randint(0, 3),
        mode=random.choice(["TF", "IDF", "TFIDF"]),
        ngram_counts=starts,
        ngram_indexes=places,
        **{"pool_strings" if isinstance(words[0], str) else "pool_int64s": pool},
        **weights,
    )


def test_two_vectorizers_keep_their_tables_apart() -> None:
    x = texts("a", "b", "a")
    options: dict[str, Any] = {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "mode": "TF"}
    for pool in (["a"], ["b", "a"], ["x"]):
        places = list(range(len(pool)))
        named = {"ngram_counts": [0], "ngram_indexes": places, "pool_strings": pool}
        model = node_model("TfIdfVectorizer", [x], opset=9, **options, **named)
        assert run_weft(model, [x])[0].tolist() == run_onnxruntime(model, [x])[0].tolist()
