"""scikit-learn, LightGBM and XGBoost: models are fitted here, converted by skl2onnx and onnxmltools, and asked."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy
import onnxruntime
import xgboost
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as Floats
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, StackingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from telling import tell

SENTENCES = [
    "the dog chased a cat",
    "cats and dogs at home",
    "shares fell on Monday",
    "oil and shares rose",
    "a dog slept",
]
TOPICS = ["pets", "pets", "money", "money", "pets"]
ASKED = ["my dog likes cats", "oil fell on Monday", "nothing of it", "Dogs, DOGS!"]
FEATURES = numpy.random.default_rng(7).normal(size=(60, 4)).astype(numpy.float32)
CLASSES = (FEATURES[:, 0] * FEATURES[:, 1] > 0).astype(int) + (FEATURES[:, 2] > 1)
AMOUNTS = FEATURES[:, 0] + FEATURES[:, 3] ** 2
KINDS = numpy.array(["red", "green", "blue"], object)[numpy.arange(60) % 3].reshape(-1, 1)


def answers(model: Any, inputs: dict[str, Any]) -> list[object]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [result if isinstance(result, list) else result.tolist() for result in session.run(None, inputs)]


def texts() -> list[object]:
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression()).fit(SENTENCES, TOPICS)
    options = {TfidfVectorizer: {"locale": "C"}}
    converted = to_onnx(model, initial_types=[("text", StringTensorType([None, 1]))], options=options)
    return answers(converted, {"text": numpy.array(ASKED, object).reshape(-1, 1)})


def columns() -> list[object]:
    parts = ColumnTransformer(
        [("numbers", StandardScaler(), [1, 2]), ("kinds", OneHotEncoder(handle_unknown="ignore"), [0])]
    )
    table = numpy.concatenate([KINDS, FEATURES[:, :2].astype(object)], axis=1)
    model = make_pipeline(parts, RandomForestClassifier(8, random_state=0)).fit(table, CLASSES)
    types = [("kind", StringTensorType([None, 1])), ("numbers", FloatTensorType([None, 2]))]
    asked = numpy.array([["red"], ["violet"], ["blue"]], object)
    return answers(to_onnx(model, initial_types=types), {"kind": asked, "numbers": FEATURES[:3, :2]})


def stacked() -> list[object]:
    parts = [("forest", RandomForestClassifier(5, random_state=0)), ("svc", SVC(probability=True, random_state=0))]
    model = StackingClassifier(parts, cv=2).fit(FEATURES, CLASSES)
    return answers(to_onnx(model, FEATURES[:1]), {"X": FEATURES[:9]})


def boosted() -> list[object]:
    holes = numpy.where(numpy.abs(FEATURES) > 1.5, numpy.nan, FEATURES).astype(numpy.float32)
    types = [("X", Floats([None, 4]))]
    light = lightgbm.LGBMClassifier(n_estimators=8, verbose=-1).fit(holes, CLASSES)
    extreme = xgboost.XGBRegressor(n_estimators=8).fit(holes, AMOUNTS)
    converted = [convert_lightgbm(light, initial_types=types), convert_xgboost(extreme, initial_types=types)]
    return [answers(model, {"X": holes[:9]}) for model in converted]


def results() -> list[object]:
    return [texts(), columns(), stacked(), boosted()]


if __name__ == "__main__":
    tell(results)
