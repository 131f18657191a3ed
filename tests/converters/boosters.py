"""Models of XGBoost, LightGBM and CatBoost, converted by onnxmltools and CatBoost's exporter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from converters.cases import C2, C3, PROBE, Case, X, Y

PROBE_MISSING = PROBE.copy()
PROBE_MISSING[::2, 1] = np.nan
X_MISSING = X.copy()
X_MISSING[::3, 1] = np.nan
POSITIVE = np.exp(Y * 0.3)
GROUP_SIZES = [10, 10, 10, 10]


def cases() -> Iterator[Case]:
    yield from xgboost_cases()
    yield from lightgbm_cases()
    yield from catboost_cases()


def xgboost_cases() -> Iterator[Case]:
    import xgboost

    small: dict[str, Any] = {"n_estimators": 5, "max_depth": 3}
    for name, estimator, y in (
        ("classifier_two", xgboost.XGBClassifier(**small), C2),
        ("classifier_three", xgboost.XGBClassifier(**small), C3),
        ("classifier_softmax", xgboost.XGBClassifier(**small, objective="multi:softmax"), C3),
        ("classifier_raw", xgboost.XGBClassifier(**small, objective="binary:logitraw"), C2),
        ("classifier_hinge", xgboost.XGBClassifier(**small, objective="binary:hinge"), C2),
        ("classifier_base", xgboost.XGBClassifier(**small, base_score=0.2), C2),
        ("classifier_dart", xgboost.XGBClassifier(**small, booster="dart", rate_drop=0.3), C2),
        ("classifier_linear", xgboost.XGBClassifier(n_estimators=5, booster="gblinear"), C2),
        ("forest_classifier", xgboost.XGBRFClassifier(**small), C3),
        ("regressor", xgboost.XGBRegressor(**small), Y),
        ("regressor_base", xgboost.XGBRegressor(**small, base_score=0.7), Y),
        ("regressor_dart", xgboost.XGBRegressor(**small, booster="dart", rate_drop=0.3), Y),
        ("regressor_linear", xgboost.XGBRegressor(n_estimators=5, booster="gblinear"), Y),
        ("regressor_poisson", xgboost.XGBRegressor(**small, objective="count:poisson"), POSITIVE),
        ("regressor_gamma", xgboost.XGBRegressor(**small, objective="reg:gamma"), POSITIVE),
        ("regressor_tweedie", xgboost.XGBRegressor(**small, objective="reg:tweedie"), POSITIVE),
        ("regressor_logistic", xgboost.XGBRegressor(**small, objective="reg:logistic"), C2),
        ("forest_regressor", xgboost.XGBRFRegressor(**small), Y),
    ):
        yield Case(f"xgboost_{name}", _fit(estimator, X, y), {"X": PROBE}, converter="xgboost")
    yield Case(
        "xgboost_missing",
        _fit(xgboost.XGBClassifier(**small), X_MISSING, C2),
        {"X": PROBE_MISSING},
        converter="xgboost",
    )
    yield Case(
        "xgboost_regressor_missing",
        _fit(xgboost.XGBRegressor(**small), X_MISSING, Y),
        {"X": PROBE_MISSING},
        converter="xgboost",
    )
    ranker = xgboost.XGBRanker(**small)
    yield Case("xgboost_ranker", lambda: ranker.fit(X, C3, group=GROUP_SIZES), {"X": PROBE}, converter="xgboost")


def lightgbm_cases() -> Iterator[Case]:
    import lightgbm

    small: dict[str, Any] = {"n_estimators": 5, "max_depth": 3, "min_child_samples": 3, "verbose": -1}
    for name, estimator, y in (
        ("classifier_two", lightgbm.LGBMClassifier(**small), C2),
        ("classifier_three", lightgbm.LGBMClassifier(**small), C3),
        ("classifier_ova", lightgbm.LGBMClassifier(**small, objective="multiclassova"), C3),
        ("classifier_dart", lightgbm.LGBMClassifier(**small, boosting_type="dart"), C2),
        (
            "classifier_forest",
            lightgbm.LGBMClassifier(**small, boosting_type="rf", bagging_freq=1, bagging_fraction=0.5),
            C2,
        ),
        ("regressor", lightgbm.LGBMRegressor(**small), Y),
        ("regressor_l1", lightgbm.LGBMRegressor(**small, objective="regression_l1"), Y),
        ("regressor_poisson", lightgbm.LGBMRegressor(**small, objective="poisson"), POSITIVE),
        ("regressor_gamma", lightgbm.LGBMRegressor(**small, objective="gamma"), POSITIVE),
        ("regressor_tweedie", lightgbm.LGBMRegressor(**small, objective="tweedie"), POSITIVE),
        ("regressor_quantile", lightgbm.LGBMRegressor(**small, objective="quantile", alpha=0.7), Y),
        (
            "regressor_forest",
            lightgbm.LGBMRegressor(**small, boosting_type="rf", bagging_freq=1, bagging_fraction=0.5),
            Y,
        ),
    ):
        yield Case(f"lightgbm_{name}", _fit(estimator, X, y), {"X": PROBE}, converter="lightgbm")
    yield Case(
        "lightgbm_missing",
        _fit(lightgbm.LGBMClassifier(**small), X_MISSING, C2),
        {"X": PROBE_MISSING},
        converter="lightgbm",
    )
    yield Case(
        "lightgbm_regressor_missing",
        _fit(lightgbm.LGBMRegressor(**small), X_MISSING, Y),
        {"X": PROBE_MISSING},
        converter="lightgbm",
    )
    zeros = np.where(np.abs(PROBE) < 0.4, 0, PROBE).astype(np.float32)
    yield Case(
        "lightgbm_zero_missing",
        _fit(lightgbm.LGBMRegressor(**small, zero_as_missing=True), np.where(np.abs(X) < 0.4, 0, X), Y),
        {"X": zeros},
        converter="lightgbm",
    )
    features = X.copy()
    features[:, 2] = np.arange(len(X)) % 7
    targets = Y + (features[:, 2] == 3) * 5 - (features[:, 2] == 5) * 4
    probe = PROBE.copy()
    probe[:, 2] = [0, 3, 5, 6, 2, 9, 4]
    estimator = lightgbm.LGBMRegressor(**small, min_data_per_group=1, cat_smooth=1)
    yield Case(
        "lightgbm_categories",
        lambda: estimator.fit(features, targets, categorical_feature=[2]),
        {"X": probe},
        converter="lightgbm",
    )
    ranker = lightgbm.LGBMRanker(**small)
    yield Case("lightgbm_ranker", lambda: ranker.fit(X, C3, group=GROUP_SIZES), {"X": PROBE}, converter="lightgbm")
    for zipmap in (False, True):
        yield Case(
            f"lightgbm_zipmap_{zipmap}",
            _fit(lightgbm.LGBMClassifier(**small), X, C3),
            {"X": PROBE},
            {"zipmap": zipmap},
            converter="lightgbm",
        )
    yield Case(
        "lightgbm_split", _fit(lightgbm.LGBMRegressor(**small), X, Y), {"X": PROBE}, {"split": 2}, converter="lightgbm"
    )


def catboost_cases() -> Iterator[Case]:
    import catboost

    small: dict[str, Any] = {"iterations": 5, "depth": 3, "verbose": 0, "allow_writing_files": False}
    yield Case(
        "catboost_two", _fit(catboost.CatBoostClassifier(**small), X, C2), {"features": PROBE}, converter="catboost"
    )
    yield Case(
        "catboost_three", _fit(catboost.CatBoostClassifier(**small), X, C3), {"features": PROBE}, converter="catboost"
    )
    words = np.array(["low", "mid", "top"])[C3]
    yield Case(
        "catboost_words",
        _fit(catboost.CatBoostClassifier(**small), X, words),
        {"features": PROBE},
        converter="catboost",
    )
    yield Case(
        "catboost_regressor", _fit(catboost.CatBoostRegressor(**small), X, Y), {"features": PROBE}, converter="catboost"
    )
    yield Case(
        "catboost_missing",
        _fit(catboost.CatBoostRegressor(**small), X_MISSING, Y),
        {"features": PROBE_MISSING},
        converter="catboost",
    )
    multiple = catboost.CatBoostRegressor(**small, loss_function="MultiRMSE")
    yield Case("catboost_multiple", _fit(multiple, X, np.stack([Y, -Y], 1)), {"features": PROBE}, converter="catboost")


def _fit(estimator: Any, x: Any, y: Any) -> Any:
    return lambda: estimator.fit(x, y)
