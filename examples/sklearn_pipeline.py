"""Train a scikit-learn pipeline, save it as ONNX, and serve it with weft, without scikit-learn.

    python examples/sklearn_pipeline.py

The pipeline classifies messages with a text, a kind of sender and two numbers as `spam` or `wanted`. The ONNX model has
one input per column, text included, and returns labels and probabilities.
Training needs scikit-learn, skl2onnx and pandas (`pip install scikit-learn skl2onnx pandas`).
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import weft

Array = np.ndarray[Any, np.dtype[Any]]
NUMBERS = ["links", "hour"]
TYPES = {"text": StringTensorType, "sender": StringTensorType, "links": FloatTensorType, "hour": FloatTensorType}
MESSAGES = [
    ("win a free prize now, click the link", "unknown", 4, 3, "spam"),
    ("cheap watches, limited offer, buy now", "unknown", 6, 2, "spam"),
    ("your account is locked, click here to confirm", "company", 2, 4, "spam"),
    ("free tickets for the first hundred who click", "unknown", 3, 23, "spam"),
    ("earn money from home, no experience needed", "unknown", 5, 1, "spam"),
    ("you have won the lottery, send us your bank details", "company", 1, 5, "spam"),
    ("the minutes of our meeting are attached", "colleague", 0, 10, "wanted"),
    ("can we move lunch to thursday", "friend", 0, 11, "wanted"),
    ("your invoice for march, thank you for your order", "company", 1, 9, "wanted"),
    ("photos of the children from the weekend", "friend", 1, 20, "wanted"),
    ("please review the draft of the report before noon", "colleague", 1, 8, "wanted"),
    ("the train is late, start dinner without me", "friend", 0, 18, "wanted"),
]


def make_table(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["text", "sender", *NUMBERS, "label"][: len(rows[0])])
    return frame.astype(dict.fromkeys(NUMBERS, np.float32))


def train(frame: pd.DataFrame) -> Pipeline:
    columns = ColumnTransformer(
        [
            ("words", TfidfVectorizer(), "text"),
            ("sender", OneHotEncoder(handle_unknown="ignore"), ["sender"]),
            ("numbers", StandardScaler(), NUMBERS),
        ]
    )
    return Pipeline([("columns", columns), ("classifier", LogisticRegression(C=10))]).fit(frame, frame["label"])


def save(pipeline: Pipeline, path: Path) -> None:
    inputs = [(name, kind([None, 1])) for name, kind in TYPES.items()]
    options = {id(pipeline): {"zipmap": False}}  # probabilities as an array, not as a list of dictionaries
    path.write_bytes(to_onnx(pipeline, initial_types=inputs, options=options, target_opset=17).SerializeToString())


def predict(model: weft.Model, frame: pd.DataFrame) -> tuple[Array, Array]:
    """Return labels and probabilities for a table whose columns are the inputs of the model."""
    outputs = model.run({spec.name: frame[[spec.name]].to_numpy() for spec in model.inputs})
    return outputs["label"], outputs["probabilities"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a pipeline, save it as ONNX, and serve it with weft.")
    parser.add_argument("--out", type=Path, default=Path("messages.onnx"), help="the file (default: messages.onnx)")
    out: Path = parser.parse_args().out
    pipeline = train(make_table(MESSAGES))
    save(pipeline, out)
    model = weft.load(out)
    new = make_table(
        [
            ("click now to win free money", "unknown", 5, 3),
            ("the report of the meeting is attached", "colleague", 1, 10),
            ("free lunch on thursday, please confirm", "friend", 0, 11),
        ]
    )
    predict(model, new)  # warm up: the first run compiles and plans
    start = time.perf_counter()
    labels, probabilities = predict(model, new)
    milliseconds = 1000 * (time.perf_counter() - start)
    for text, label, row in zip(new["text"], labels, probabilities):
        print(f"{label:7} {row.max():6.1%}  {text}")
    agree = (labels == pipeline.predict(new)).all() and np.allclose(
        probabilities, pipeline.predict_proba(new), atol=1e-5
    )
    print(f"{out}, {milliseconds:.2f} ms; scikit-learn says {'the same' if agree else 'something else'}")


if __name__ == "__main__":
    main()
