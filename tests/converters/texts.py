"""Pipelines of text and categorical features."""

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
TEST_DOCUMENTS = [
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
    options_by_name: dict[str, dict[str, Any]] = {
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
    for name, options in options_by_name.items():
        yield Case(f"count_{name}", _fit_documents(CountVectorizer(**options)), {"X": column(TEST_DOCUMENTS)})
        yield Case(f"tfidf_{name}", _fit_documents(TfidfVectorizer(**options)), {"X": column(TEST_DOCUMENTS)})
    for name, options in {
        "sublinear": {"sublinear_tf": True},
        "no_idf": {"use_idf": False},
        "l1": {"norm": "l1"},
        "raw": {"norm": None},
        "unsmooth": {"smooth_idf": False},
    }.items():
        yield Case(f"tfidf_{name}", _fit_documents(TfidfVectorizer(**options)), {"X": column(TEST_DOCUMENTS)})
    counts = CountVectorizer(ngram_range=(1, 2))
    yield Case(
        "tfidf_transformer",
        _fit_documents(pipeline.make_pipeline(counts, TfidfTransformer(sublinear_tf=True))),
        {"X": column(TEST_DOCUMENTS)},
    )
    for name, model in {
        "logistic": linear_model.LogisticRegression(),
        "bayes": naive_bayes.MultinomialNB(),
        "complement": naive_bayes.ComplementNB(),
        "sgd": linear_model.SGDClassifier(loss="log_loss", random_state=0),
        "forest": ensemble.RandomForestClassifier(n_estimators=4, random_state=0),
    }.items():
        model_pipeline = pipeline.make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), model)
        yield Case(f"text_{name}", _fit_documents(model_pipeline), {"X": column(TEST_DOCUMENTS)})
    separators = {TfidfVectorizer: {"separators": [" ", "[.]", "\\?", ",", ";", ":", "!"]}}
    yield Case("tfidf_separators", _fit_documents(TfidfVectorizer()), {"X": column(TEST_DOCUMENTS)}, separators)
    yield Case(
        "tfidf_tokenexp",
        _fit_documents(TfidfVectorizer()),
        {"X": column(TEST_DOCUMENTS)},
        {TfidfVectorizer: {"tokenexp": "[a-zA-Z0-9_]+"}},
    )
    for opset in (10, 13, 18):
        yield Case(f"tfidf_opset{opset}", _fit_documents(TfidfVectorizer()), {"X": column(TEST_DOCUMENTS)}, {}, opset)
    yield Case("tfidf_flat", _fit_documents(TfidfVectorizer()), {"X": np.array(TEST_DOCUMENTS, object)})


def _fit_documents(estimator: Any) -> Any:
    return lambda: estimator.fit(DOCUMENTS, TOPICS)


COLOURS = [
    ["red", "small"],
    ["green", "large"],
    ["blue", "small"],
    ["red", "huge"],
    ["green", "small"],
    ["blue", "huge"],
]
CATEGORIES = np.array(COLOURS, object)
KNOWN_CATEGORIES = np.array([["blue", "huge"], ["red", "small"], ["green", "large"]], object)
UNKNOWN_CATEGORIES = np.array([["blue", "tiny"], ["violet", "small"], ["red", ""]], object)
NUMBERS = np.array([[1, 10], [2, 20], [3, 10], [1, 30], [2, 20], [3, 30]])


def categories() -> Iterator[Case]:
    one_hot, ordinal = preprocessing.OneHotEncoder, preprocessing.OrdinalEncoder
    for name, estimator, x in (
        ("one_hot", one_hot(), KNOWN_CATEGORIES),
        ("one_hot_ignored", one_hot(handle_unknown="ignore"), UNKNOWN_CATEGORIES),
        ("one_hot_dense", one_hot(handle_unknown="ignore", sparse_output=False, dtype=np.float32), UNKNOWN_CATEGORIES),
        ("one_hot_first", one_hot(drop="first"), KNOWN_CATEGORIES),
        ("one_hot_binary", one_hot(drop="if_binary"), KNOWN_CATEGORIES),
        ("one_hot_int64", one_hot(dtype=np.int64), KNOWN_CATEGORIES),
        ("one_hot_rare", one_hot(min_frequency=2, handle_unknown="infrequent_if_exist"), UNKNOWN_CATEGORIES),
        ("ordinal", ordinal(), KNOWN_CATEGORIES),
        ("ordinal_float32", ordinal(dtype=np.float32), KNOWN_CATEGORIES),
        ("ordinal_unknown", ordinal(handle_unknown="use_encoded_value", unknown_value=-1), UNKNOWN_CATEGORIES),
        ("imputer_frequent", impute.SimpleImputer(strategy="most_frequent", missing_values=""), UNKNOWN_CATEGORIES),
        (
            "imputer_texts",
            impute.SimpleImputer(strategy="constant", fill_value="none", missing_values=""),
            UNKNOWN_CATEGORIES,
        ),
    ):
        yield Case(name, _fit(estimator, CATEGORIES), {"X": x})
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
        "label_encoder", _fit(preprocessing.LabelEncoder(), CATEGORIES[:, 0]), {"X": np.array(["blue", "red"], object)}
    )
    yield Case(
        "label_binarizer_texts",
        _fit(preprocessing.LabelBinarizer(), CATEGORIES[:, 0]),
        {"X": np.array(["blue", "red"], object)},
    )
    encoder = preprocessing.TargetEncoder(cv=2, target_type="continuous")
    targets = np.linspace(0, 1, 12)
    yield Case("target_encoder", lambda: encoder.fit(np.tile(CATEGORIES, (2, 1)), targets), {"X": KNOWN_CATEGORIES})
    encoder_numbers = preprocessing.TargetEncoder(cv=2, target_type="continuous")
    yield Case(
        "target_encoder_numbers", lambda: encoder_numbers.fit(np.tile(NUMBERS, (2, 1)), targets), {"X": NUMBERS[:3]}
    )
    encoder_classes = preprocessing.TargetEncoder(cv=2, target_type="multiclass")
    yield Case(
        "target_encoder_classes",
        lambda: encoder_classes.fit(np.tile(CATEGORIES, (2, 1)), np.arange(12) % 3),
        {"X": KNOWN_CATEGORIES},
    )
    hasher = feature_extraction.FeatureHasher(8, input_type="string")
    yield Case("feature_hasher", _fit(hasher, CATEGORIES.tolist()), {"X": KNOWN_CATEGORIES})
    plain = feature_extraction.FeatureHasher(8, input_type="string", alternate_sign=False)
    yield Case("feature_hasher_plain", _fit(plain, CATEGORIES.tolist()), {"X": KNOWN_CATEGORIES})


def _fit(estimator: Any, x: Any, y: Any = None) -> Any:
    return lambda: estimator.fit(x) if y is None else estimator.fit(x, y)


def mixed() -> Iterator[Case]:
    """Yield models of a table with columns of several types, each an input."""
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
            "text": [DOCUMENTS[row % 7] for row in range(rows)],
        }
    )
    table["colour"], table["size"], table["text"] = (table[name].astype(object) for name in ("colour", "size", "text"))
    targets = np.where(numbers[:, 0] > 0, "yes", "no")
    test_table = {name: table[name].to_numpy()[:6].reshape(-1, 1).copy() for name in table}
    test_table["colour"][2, 0] = "violet"
    numeric = pipeline.make_pipeline(impute.SimpleImputer(strategy="median"), preprocessing.StandardScaler())
    one_hot = preprocessing.OneHotEncoder(handle_unknown="ignore")
    for name, last in {
        "logistic": linear_model.LogisticRegression(),
        "boosting": ensemble.GradientBoostingClassifier(n_estimators=4, max_depth=2),
        "forest": ensemble.RandomForestClassifier(n_estimators=4, random_state=0),
    }.items():
        transformer = compose.ColumnTransformer([("n", numeric, ["age", "height"]), ("c", one_hot, ["colour", "size"])])
        names = ["age", "height", "colour", "size"]
        model_pipeline = pipeline.make_pipeline(transformer, last)
        inputs = {key: test_table[key] for key in names}
        yield Case(f"mixed_{name}", _fit(model_pipeline, table[names], targets), inputs)
    transformer = compose.ColumnTransformer(
        [
            ("n", preprocessing.MinMaxScaler(), ["age"]),
            ("c", one_hot, ["colour"]),
            ("t", TfidfVectorizer(), "text"),
            ("o", preprocessing.OrdinalEncoder(), ["size"]),
            ("i", "passthrough", ["count"]),
        ]
    )
    names = ["age", "colour", "text", "size", "count"]
    model_pipeline = pipeline.make_pipeline(transformer, linear_model.LogisticRegression())
    yield Case("mixed_text", _fit(model_pipeline, table[names], targets), {key: test_table[key] for key in names})
