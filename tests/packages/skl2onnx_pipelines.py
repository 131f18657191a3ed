"""Fit models of scikit-learn, LightGBM and XGBoost, convert them with skl2onnx and onnxmltools, and run them."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy
import onnxruntime
import xgboost
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as Floats
from script_output import print_results
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, StackingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

SENTENCES = [
    "the dog chased a cat",
    "cats and dogs at home",
    "shares fell on Monday",
    "oil and shares rose",
    "a dog slept",
]
TOPICS = ["pets", "pets", "money", "money", "pets"]
QUERIES = ["my dog likes cats", "oil fell on Monday", "something else", "Dogs, DOGS!"]
FEATURES = numpy.random.default_rng(7).normal(size=(60, 4)).astype(numpy.float32)
CLASSES = (FEATURES[:, 0] * FEATURES[:, 1] > 0).astype(int) + (FEATURES[:, 2] > 1)
TARGETS = FEATURES[:, 0] + FEATURES[:, 3] ** 2
COLORS = numpy.array(["red", "green", "blue"], object)[numpy.arange(60) % 3].reshape(-1, 1)


def run_model(model: Any, inputs: dict[str, Any]) -> list[object]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [result if isinstance(result, list) else result.tolist() for result in session.run(None, inputs)]


def classify_texts() -> list[object]:
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression()).fit(SENTENCES, TOPICS)
    options = {TfidfVectorizer: {"locale": "C"}}
    converted = to_onnx(model, initial_types=[("text", StringTensorType([None, 1]))], options=options)
    return run_model(converted, {"text": numpy.array(QUERIES, object).reshape(-1, 1)})


def classify_table() -> list[object]:
    transformer = ColumnTransformer(
        [("numbers", StandardScaler(), [1, 2]), ("colors", OneHotEncoder(handle_unknown="ignore"), [0])]
    )
    table = numpy.concatenate([COLORS, FEATURES[:, :2].astype(object)], axis=1)
    model = make_pipeline(transformer, RandomForestClassifier(8, random_state=0)).fit(table, CLASSES)
    types = [("color", StringTensorType([None, 1])), ("numbers", FloatTensorType([None, 2]))]
    colors = numpy.array([["red"], ["violet"], ["blue"]], object)
    return run_model(to_onnx(model, initial_types=types), {"color": colors, "numbers": FEATURES[:3, :2]})


def stack_classifiers() -> list[object]:
    estimators = [("forest", RandomForestClassifier(5, random_state=0)), ("svc", SVC(probability=True, random_state=0))]
    model = StackingClassifier(estimators, cv=2).fit(FEATURES, CLASSES)
    return run_model(to_onnx(model, FEATURES[:1]), {"X": FEATURES[:9]})


def boost_trees() -> list[object]:
    with_nan = numpy.where(numpy.abs(FEATURES) > 1.5, numpy.nan, FEATURES).astype(numpy.float32)
    types = [("X", Floats([None, 4]))]
    classifier = lightgbm.LGBMClassifier(n_estimators=8, verbose=-1).fit(with_nan, CLASSES)
    regressor = xgboost.XGBRegressor(n_estimators=8).fit(with_nan, TARGETS)
    converted = [convert_lightgbm(classifier, initial_types=types), convert_xgboost(regressor, initial_types=types)]
    return [run_model(model, {"X": with_nan[:9]}) for model in converted]


def results() -> list[object]:
    return [classify_texts(), classify_table(), stack_classifiers(), boost_trees()]


if __name__ == "__main__":
    print_results(results)
