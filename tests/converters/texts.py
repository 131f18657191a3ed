"""Pipelines of text and categories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from converters.cases import Case, features
from sklearn import (
    compose,
    ensemble,
    feature_extraction,
    impute,
    linear_model,
    naive_bayes,
    pipeline,
    preprocessing,
)
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer, TfidfVectorizer

DOCUMENTS = [
    "The quick brown fox jumps over the lazy dog",
    "A lazy dog sleeps all day; the fox does not.",
    "Markets fell sharply, as oil prices rose 12.5% to $80",
    "Oil and gas: prices, markets and the day's news",
    "quick quick QUICK dog's news-letter e-mail me@example.org",
    "brown   bread\tand butter\nand tea",
    "naïve café owners façade über alles",
    "",
]
TOPICS = np.array(["animals", "animals", "money", "money", "letters", "food", "abroad", "nothing"])
ASKED = [
    "the dog and the fox",
    "Oil prices: 12 dollars!",
    "e-mail, news and butter...",
    "nothing that was ever seen",
    "",
    "CAFÉ naïve Über",
    "  a b c  x_y  ",
]


def cases() -> Iterator[Case]:
    yield from vectorizers()
    yield from categories()
    yield from mixed()


def column(strings: list[str]) -> Any:
    return np.array(strings, object).reshape(-1, 1)


def vectorizers() -> Iterator[Case]:
    ways: dict[str, dict[str, Any]] = {
        "words": {},
        "bigrams": {"ngram_range": (1, 2)},
        "only_bigrams": {"ngram_range": (2, 2)},
        "trigrams": {"ngram_range": (2, 3)},
        "stop_words": {"stop_words": ["the", "and", "a"]},
        "english": {"stop_words": "english"},
        "cased": {"lowercase": False},
        "binary": {"binary": True},
        "min_df": {"min_df": 2},
        "few": {"max_features": 5},
        "letters": {"token_pattern": "[a-zA-Z]+"},
        "wordlike": {"token_pattern": "\\b[a-z]+\\b"},
        "single": {"token_pattern": "(?u)\\b\\w+\\b"},
        "characters": {"analyzer": "char"},
        "character_grams": {"analyzer": "char", "ngram_range": (1, 3)},
        "character_words": {"analyzer": "char_wb", "ngram_range": (2, 3)},
        "accents": {"strip_accents": "unicode"},
        "vocabulary": {"vocabulary": ["dog", "fox", "oil", "day"]},
    }
    for name, options in ways.items():
        yield Case(f"count_{name}", _read(CountVectorizer(**options)), {"X": column(ASKED)})
        yield Case(f"tfidf_{name}", _read(TfidfVectorizer(**options)), {"X": column(ASKED)})
    for name, options in {
        "sublinear": {"sublinear_tf": True},
        "no_idf": {"use_idf": False},
        "l1": {"norm": "l1"},
        "raw": {"norm": None},
        "unsmooth": {"smooth_idf": False},
    }.items():
        yield Case(f"tfidf_{name}", _read(TfidfVectorizer(**options)), {"X": column(ASKED)})
    counts = CountVectorizer(ngram_range=(1, 2))
    yield Case(
        "tfidf_transformer",
        _read(pipeline.make_pipeline(counts, TfidfTransformer(sublinear_tf=True))),
        {"X": column(ASKED)},
    )
    for name, model in {
        "logistic": linear_model.LogisticRegression(),
        "bayes": naive_bayes.MultinomialNB(),
        "complement": naive_bayes.ComplementNB(),
        "sgd": linear_model.SGDClassifier(loss="log_loss", random_state=0),
        "forest": ensemble.RandomForestClassifier(n_estimators=4, random_state=0),
    }.items():
        whole = pipeline.make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), model)
        yield Case(f"text_{name}", _read(whole), {"X": column(ASKED)})
    separators = {TfidfVectorizer: {"separators": [" ", "[.]", "\\?", ",", ";", ":", "!"]}}
    yield Case("tfidf_separators", _read(TfidfVectorizer()), {"X": column(ASKED)}, separators)
    yield Case(
        "tfidf_tokenexp",
        _read(TfidfVectorizer()),
        {"X": column(ASKED)},
        {TfidfVectorizer: {"tokenexp": "[a-zA-Z0-9_]+"}},
    )
    for opset in (10, 13, 18):
        yield Case(f"tfidf_opset{opset}", _read(TfidfVectorizer()), {"X": column(ASKED)}, {}, opset)
    yield Case("tfidf_flat", _read(TfidfVectorizer()), {"X": np.array(ASKED, object)})


def _read(estimator: Any) -> Any:
    return lambda: estimator.fit(DOCUMENTS, TOPICS)


COLOURS = [
    ["red", "small"],
    ["green", "large"],
    ["blue", "small"],
    ["red", "huge"],
    ["green", "small"],
    ["blue", "huge"],
]
SEEN = np.array(COLOURS, object)
WANTED = np.array([["blue", "huge"], ["red", "small"], ["green", "large"]], object)
STRANGE = np.array([["blue", "tiny"], ["violet", "small"], ["red", ""]], object)
NUMBERS = np.array([[1, 10], [2, 20], [3, 10], [1, 30], [2, 20], [3, 30]])


def categories() -> Iterator[Case]:
    one_hot, ordinal = preprocessing.OneHotEncoder, preprocessing.OrdinalEncoder
    for name, estimator, x in (
        ("one_hot", one_hot(), WANTED),
        ("one_hot_ignored", one_hot(handle_unknown="ignore"), STRANGE),
        ("one_hot_dense", one_hot(handle_unknown="ignore", sparse_output=False, dtype=np.float32), STRANGE),
        ("one_hot_first", one_hot(drop="first"), WANTED),
        ("one_hot_binary", one_hot(drop="if_binary"), WANTED),
        ("one_hot_int64", one_hot(dtype=np.int64), WANTED),
        ("one_hot_rare", one_hot(min_frequency=2, handle_unknown="infrequent_if_exist"), STRANGE),
        ("ordinal", ordinal(), WANTED),
        ("ordinal_float32", ordinal(dtype=np.float32), WANTED),
        ("ordinal_unknown", ordinal(handle_unknown="use_encoded_value", unknown_value=-1), STRANGE),
        ("imputer_frequent", impute.SimpleImputer(strategy="most_frequent", missing_values=""), STRANGE),
        ("imputer_texts", impute.SimpleImputer(strategy="constant", fill_value="none", missing_values=""), STRANGE),
    ):
        yield Case(name, _fit(estimator, SEEN), {"X": x})
    for name, estimator, x in (
        ("one_hot_numbers", one_hot(), NUMBERS[:3]),
        ("one_hot_numbers_ignored", one_hot(handle_unknown="ignore"), np.array([[9, 10], [1, 99]])),
        ("ordinal_numbers", ordinal(), NUMBERS[:3]),
        (
            "ordinal_numbers_unknown",
            ordinal(handle_unknown="use_encoded_value", unknown_value=-5),
            np.array([[9, 10], [1, 99]]),
        ),
    ):
        yield Case(name, _fit(estimator, NUMBERS), {"X": x})
        yield Case(
            f"{name}_float",
            _fit(type(estimator)(**estimator.get_params()), NUMBERS.astype(np.float32)),
            {"X": x.astype(np.float32)},
        )
    yield Case(
        "label_encoder", _fit(preprocessing.LabelEncoder(), SEEN[:, 0]), {"X": np.array(["blue", "red"], object)}
    )
    yield Case(
        "label_binarizer_texts",
        _fit(preprocessing.LabelBinarizer(), SEEN[:, 0]),
        {"X": np.array(["blue", "red"], object)},
    )
    encoder = preprocessing.TargetEncoder(cv=2, target_type="continuous")
    goal = np.linspace(0, 1, 12)
    yield Case("target_encoder", lambda: encoder.fit(np.tile(SEEN, (2, 1)), goal), {"X": WANTED})
    encoder_numbers = preprocessing.TargetEncoder(cv=2, target_type="continuous")
    yield Case(
        "target_encoder_numbers", lambda: encoder_numbers.fit(np.tile(NUMBERS, (2, 1)), goal), {"X": NUMBERS[:3]}
    )
    encoder_classes = preprocessing.TargetEncoder(cv=2, target_type="multiclass")
    yield Case(
        "target_encoder_classes", lambda: encoder_classes.fit(np.tile(SEEN, (2, 1)), np.arange(12) % 3), {"X": WANTED}
    )
    hasher = feature_extraction.FeatureHasher(8, input_type="string")
    yield Case("feature_hasher", _fit(hasher, SEEN.tolist()), {"X": WANTED})
    plain = feature_extraction.FeatureHasher(8, input_type="string", alternate_sign=False)
    yield Case("feature_hasher_plain", _fit(plain, SEEN.tolist()), {"X": WANTED})


def _fit(estimator: Any, x: Any, y: Any = None) -> Any:
    return lambda: estimator.fit(x) if y is None else estimator.fit(x, y)


def mixed() -> Iterator[Case]:
    """Columns of several kinds, each an input of its own."""
    import pandas

    rows = 24
    numbers = features(rows, 2, seed=4)
    generator = np.random.default_rng(5)
    table = pandas.DataFrame(
        {
            "age": numbers[:, 0],
            "height": numbers[:, 1],
            "count": generator.integers(0, 5, rows),
            "colour": generator.choice(["red", "green", "blue"], rows),
            "size": generator.choice(["small", "large"], rows),
            "text": [DOCUMENTS[place % 7] for place in range(rows)],
        }
    )
    table["colour"], table["size"], table["text"] = (table[name].astype(object) for name in ("colour", "size", "text"))
    goal = np.where(numbers[:, 0] > 0, "yes", "no")
    asked = {name: table[name].to_numpy()[:6].reshape(-1, 1).copy() for name in table}
    asked["colour"][2, 0] = "violet"
    numeric = pipeline.make_pipeline(impute.SimpleImputer(strategy="median"), preprocessing.StandardScaler())
    known = preprocessing.OneHotEncoder(handle_unknown="ignore")
    for name, last in {
        "logistic": linear_model.LogisticRegression(),
        "boosting": ensemble.GradientBoostingClassifier(n_estimators=4, max_depth=2),
        "forest": ensemble.RandomForestClassifier(n_estimators=4, random_state=0),
    }.items():
        parts = compose.ColumnTransformer([("n", numeric, ["age", "height"]), ("c", known, ["colour", "size"])])
        wanted = ["age", "height", "colour", "size"]
        whole = pipeline.make_pipeline(parts, last)
        given = {key: asked[key] for key in wanted}
        yield Case(f"mixed_{name}", _fit(whole, table[wanted], goal), given)
    parts = compose.ColumnTransformer(
        [
            ("n", preprocessing.MinMaxScaler(), ["age"]),
            ("c", known, ["colour"]),
            ("t", TfidfVectorizer(), "text"),
            ("o", preprocessing.OrdinalEncoder(), ["size"]),
            ("i", "passthrough", ["count"]),
        ]
    )
    wanted = ["age", "colour", "text", "size", "count"]
    whole = pipeline.make_pipeline(parts, linear_model.LogisticRegression())
    yield Case("mixed_text", _fit(whole, table[wanted], goal), {key: asked[key] for key in wanted})
