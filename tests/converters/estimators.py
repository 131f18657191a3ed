"""Small instances of every numeric estimator that skl2onnx converts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from converters.cases import C2, C3, PROBE, WORDS, Y2, Array, Case, X, Y
from sklearn import (
    calibration,
    cluster,
    compose,
    cross_decomposition,
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_selection,
    gaussian_process,
    impute,
    linear_model,
    mixture,
    model_selection,
    multiclass,
    multioutput,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    random_projection,
    svm,
    tree,
)
from sklearn.gaussian_process import kernels
from sklearn.metrics.pairwise import rbf_kernel

SMALL = {"n_estimators": 5, "max_depth": 3, "random_state": 0}
POSITIVE = np.abs(X) + 0.01


def cases() -> Iterator[Case]:
    yield from classifiers()
    yield from regressors()
    yield from outliers_and_clusters()
    yield from transformers()
    yield from compositions()
    yield from number_types()


def _fit(estimator: Any, x: Array = X, y: Array | None = None) -> Any:
    return lambda: estimator.fit(x, y) if y is not None else estimator.fit(x)


def classifiers() -> Iterator[Case]:
    logistic = linear_model.LogisticRegression()
    plain: dict[str, Any] = {
        "logistic": logistic,
        "logistic_cv": linear_model.LogisticRegressionCV(Cs=3, cv=2),
        "ridge_classifier": linear_model.RidgeClassifier(),
        "ridge_classifier_cv": linear_model.RidgeClassifierCV(),
        "sgd_log": linear_model.SGDClassifier(loss="log_loss", random_state=0),
        "sgd_hinge": linear_model.SGDClassifier(random_state=0),
        "sgd_huber": linear_model.SGDClassifier(loss="modified_huber", random_state=0),
        "perceptron": linear_model.Perceptron(random_state=0),
        "passive_aggressive": linear_model.PassiveAggressiveClassifier(random_state=0),
        "linear_svc": svm.LinearSVC(),
        "svc_rbf": svm.SVC(),
        "svc_linear": svm.SVC(kernel="linear"),
        "svc_poly": svm.SVC(kernel="poly", degree=3, coef0=0.5),
        "svc_sigmoid": svm.SVC(kernel="sigmoid"),
        "svc_ovo": svm.SVC(decision_function_shape="ovo"),
        "svc_ties": svm.SVC(break_ties=True),
        "svc_probability": svm.SVC(probability=True, random_state=0),
        "nu_svc": svm.NuSVC(nu=0.3),
        "nu_svc_probability": svm.NuSVC(nu=0.3, probability=True, random_state=0),
        "decision_tree": tree.DecisionTreeClassifier(max_depth=4, random_state=0),
        "extra_tree": tree.ExtraTreeClassifier(max_depth=4, random_state=0),
        "random_forest": ensemble.RandomForestClassifier(**SMALL),
        "extra_trees": ensemble.ExtraTreesClassifier(**SMALL),
        "gradient_boosting": ensemble.GradientBoostingClassifier(**SMALL),
        "hist_gradient_boosting": ensemble.HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=3),
        "ada_boost": ensemble.AdaBoostClassifier(n_estimators=4, random_state=0),
        "bagging": ensemble.BaggingClassifier(n_estimators=3, random_state=0),
        "bagging_features": ensemble.BaggingClassifier(logistic, n_estimators=3, max_features=2, random_state=0),
        "voting_hard": ensemble.VotingClassifier(
            [("a", logistic), ("b", tree.DecisionTreeClassifier(max_depth=2))], flatten_transform=False
        ),
        "voting_soft": ensemble.VotingClassifier(
            [("a", logistic), ("b", tree.DecisionTreeClassifier(max_depth=2))],
            voting="soft",
            weights=np.array([2, 1]),
            flatten_transform=False,
        ),
        "stacking": ensemble.StackingClassifier([("a", logistic), ("b", svm.LinearSVC())], cv=2),
        "stacking_through": ensemble.StackingClassifier([("a", logistic)], cv=2, passthrough=True),
        "calibrated_sigmoid": calibration.CalibratedClassifierCV(svm.LinearSVC(), cv=2),
        "calibrated_isotonic": calibration.CalibratedClassifierCV(naive_bayes.GaussianNB(), cv=2, method="isotonic"),
        "one_vs_rest": multiclass.OneVsRestClassifier(logistic),
        "one_vs_one": multiclass.OneVsOneClassifier(logistic),
        "gaussian_nb": naive_bayes.GaussianNB(),
        "bernoulli_nb": naive_bayes.BernoulliNB(),
        "knn": neighbors.KNeighborsClassifier(3),
        "knn_distance": neighbors.KNeighborsClassifier(3, weights="distance"),
        "knn_manhattan": neighbors.KNeighborsClassifier(3, metric="manhattan"),
        "knn_minkowski": neighbors.KNeighborsClassifier(3, metric="minkowski", p=3),
        "radius_neighbors": neighbors.RadiusNeighborsClassifier(5.0),
        "mlp": neural_network.MLPClassifier((5,), max_iter=30, random_state=0),
        "mlp_tanh": neural_network.MLPClassifier((5, 3), activation="tanh", max_iter=30, random_state=0),
        "mlp_logistic": neural_network.MLPClassifier((5,), activation="logistic", max_iter=30, random_state=0),
        "lda": discriminant_analysis.LinearDiscriminantAnalysis(),
        "qda": discriminant_analysis.QuadraticDiscriminantAnalysis(reg_param=0.1),
        "grid_search": model_selection.GridSearchCV(logistic, {"C": [0.1, 1.0]}, cv=2),
        "gaussian_process_classifier": gaussian_process.GaussianProcessClassifier(),
    }
    for name, estimator in plain.items():
        for kind, y in (("two", C2), ("three", C3), ("words", WORDS[C3])):
            yield Case(f"{name}_{kind}", _fit(_clone(estimator), X, y), {"X": PROBE})
    for name in ("logistic", "random_forest", "svc_probability", "gradient_boosting", "knn", "mlp", "gaussian_nb"):
        for kind, y in (("two", C2), ("words", WORDS[C3])):
            for suffix, zipmap in (("plain", False), ("columns", "columns")):
                yield Case(f"{name}_{kind}_{suffix}", _fit(_clone(plain[name]), X, y), {"X": PROBE}, {"zipmap": zipmap})
    for name in (
        "logistic",
        "gradient_boosting",
        "svc_rbf",
        "svc_ovo",
        "svc_probability",
        "lda",
        "linear_svc",
        "sgd_log",
    ):
        for kind, y in (("two", C2), ("three", C3)):
            options = {"raw_scores": True} if name == "linear_svc" else {"zipmap": False, "raw_scores": True}
            yield Case(f"{name}_{kind}_raw", _fit(_clone(plain[name]), X, y), {"X": PROBE}, options)
    for name in ("decision_tree", "random_forest", "extra_trees", "extra_tree"):
        options = {"zipmap": False, "decision_leaf": True, "decision_path": True}
        yield Case(f"{name}_paths", _fit(_clone(plain[name]), X, C3), {"X": PROBE}, options)
    for opset in (
        {"": 9, "ai.onnx.ml": 1},
        {"": 12, "ai.onnx.ml": 2},
        {"": 15, "ai.onnx.ml": 3},
        {"": 21, "ai.onnx.ml": 3},
    ):
        for name in ("logistic", "random_forest", "svc_probability", "hist_gradient_boosting", "knn", "gaussian_nb"):
            version = opset[""]
            yield Case(f"{name}_opset{version}", _fit(_clone(plain[name]), X, C3), {"X": PROBE}, {}, opset)
    two_targets = np.stack([C2, C3], 1)
    yield Case(
        "multi_output_classifier",
        _fit(multioutput.MultiOutputClassifier(_clone(logistic)), X, two_targets),
        {"X": PROBE},
        {"zipmap": False},
    )
    yield Case(
        "tree_of_two_outputs",
        _fit(_clone(plain["decision_tree"]), X, two_targets),
        {"X": PROBE},
        {"zipmap": False},
    )
    yield Case(
        "forest_of_two_outputs",
        _fit(_clone(plain["random_forest"]), X, two_targets),
        {"X": PROBE},
        {"zipmap": False},
    )
    yield Case("knn_of_two_outputs", _fit(_clone(plain["knn"]), X, two_targets), {"X": PROBE}, {"zipmap": False})
    labels = np.stack([C2, 1 - C2, C3 > 1], 1).astype(int)
    yield Case(
        "one_vs_rest_multilabel",
        _fit(multiclass.OneVsRestClassifier(_clone(logistic)), X, labels),
        {"X": PROBE},
        {"zipmap": False},
    )
    yield Case("mlp_multilabel", _fit(_clone(plain["mlp"]), X, labels), {"X": PROBE}, {"zipmap": False})
    yield Case("complement_nb", _fit(naive_bayes.ComplementNB(), POSITIVE, C3), {"X": np.abs(PROBE)})
    yield Case("multinomial_nb", _fit(naive_bayes.MultinomialNB(), POSITIVE, C3), {"X": np.abs(PROBE)})
    counts = (POSITIVE * 2).astype(np.int64).clip(0, 3)
    yield Case(
        "categorical_nb",
        _fit(naive_bayes.CategoricalNB(min_categories=5), counts, C3),
        {"X": (np.abs(PROBE) * 2).astype(np.int64).clip(0, 3)},
    )
    tuned = model_selection.TunedThresholdClassifierCV(_clone(logistic), cv=2)
    yield Case("tuned_threshold", _fit(tuned, X, C2), {"X": PROBE})
    yield Case("named_after_classes", _fit(_clone(logistic), X, np.array([-5, 3, 900])[C3]), {"X": PROBE})


def regressors() -> Iterator[Case]:
    linear = linear_model
    plain: dict[str, Any] = {
        "ard": linear.ARDRegression(),
        "bayesian_ridge": linear.BayesianRidge(),
        "elastic_net": linear.ElasticNet(0.01),
        "elastic_net_cv": linear.ElasticNetCV(cv=2),
        "huber": linear.HuberRegressor(),
        "lars": linear.Lars(),
        "lars_cv": linear.LarsCV(cv=2),
        "lasso": linear.Lasso(0.01),
        "lasso_cv": linear.LassoCV(cv=2),
        "lasso_lars": linear.LassoLars(0.01),
        "lasso_lars_cv": linear.LassoLarsCV(cv=2),
        "lasso_lars_ic": linear.LassoLarsIC(),
        "linear": linear.LinearRegression(),
        "linear_svr": svm.LinearSVR(),
        "omp": linear.OrthogonalMatchingPursuit(),
        "omp_cv": linear.OrthogonalMatchingPursuitCV(cv=2),
        "passive_aggressive_regressor": linear.PassiveAggressiveRegressor(random_state=0),
        "quantile": linear.QuantileRegressor(alpha=0.01),
        "ransac": linear.RANSACRegressor(random_state=0),
        "ridge": linear.Ridge(),
        "ridge_cv": linear.RidgeCV(),
        "sgd_regressor": linear.SGDRegressor(random_state=0),
        "theil_sen": linear.TheilSenRegressor(random_state=0, max_subpopulation=50),
        "svr_rbf": svm.SVR(),
        "svr_linear": svm.SVR(kernel="linear"),
        "svr_poly": svm.SVR(kernel="poly"),
        "svr_sigmoid": svm.SVR(kernel="sigmoid"),
        "nu_svr": svm.NuSVR(),
        "tree_regressor": tree.DecisionTreeRegressor(max_depth=4, random_state=0),
        "extra_tree_regressor": tree.ExtraTreeRegressor(max_depth=4, random_state=0),
        "forest_regressor": ensemble.RandomForestRegressor(**SMALL),
        "extra_trees_regressor": ensemble.ExtraTreesRegressor(**SMALL),
        "gradient_boosting_regressor": ensemble.GradientBoostingRegressor(**SMALL),
        "hist_gradient_boosting_regressor": ensemble.HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=3),
        "ada_boost_regressor": ensemble.AdaBoostRegressor(n_estimators=4, random_state=0),
        "bagging_regressor": ensemble.BaggingRegressor(n_estimators=3, random_state=0),
        "voting_regressor": ensemble.VotingRegressor(
            [("a", linear.Ridge()), ("b", tree.DecisionTreeRegressor(max_depth=2))]
        ),
        "stacking_regressor": ensemble.StackingRegressor([("a", linear.Ridge()), ("b", svm.LinearSVR())], cv=2),
        "knn_regressor": neighbors.KNeighborsRegressor(3),
        "knn_regressor_distance": neighbors.KNeighborsRegressor(3, weights="distance"),
        "radius_regressor": neighbors.RadiusNeighborsRegressor(5.0),
        "mlp_regressor": neural_network.MLPRegressor(hidden_layer_sizes=(5,), max_iter=30, random_state=0),
        "pls": cross_decomposition.PLSRegression(2),
        "gaussian_process": gaussian_process.GaussianProcessRegressor(
            kernels.RBF() + kernels.WhiteKernel(0.1), optimizer=None
        ),
        "gaussian_process_matern": gaussian_process.GaussianProcessRegressor(
            kernels.Matern(nu=1.5), alpha=0.1, optimizer=None
        ),
        "gaussian_process_periodic": gaussian_process.GaussianProcessRegressor(
            kernels.ExpSineSquared() * kernels.ConstantKernel(2.0), alpha=10.0, optimizer=None
        ),
        "gaussian_process_dot": gaussian_process.GaussianProcessRegressor(
            kernels.DotProduct() + kernels.RationalQuadratic(), alpha=0.1, optimizer=None
        ),
        "regressor_grid": model_selection.GridSearchCV(linear.Ridge(), {"alpha": [0.1, 1.0]}, cv=2),
    }
    for name, estimator in plain.items():
        yield Case(name, _fit(_clone(estimator), X, Y), {"X": PROBE})
    for name in (
        "linear",
        "ridge",
        "tree_regressor",
        "forest_regressor",
        "knn_regressor",
        "mlp_regressor",
        "pls",
        "extra_trees_regressor",
        "gaussian_process",
    ):
        yield Case(f"{name}_of_two", _fit(_clone(plain[name]), X, Y2), {"X": PROBE})
    for name in ("tree_regressor", "forest_regressor"):
        yield Case(
            f"{name}_paths",
            _fit(_clone(plain[name]), X, Y),
            {"X": PROBE},
            {"decision_leaf": True, "decision_path": True},
        )
    for name, estimator in {
        "multi_task_elastic_net": linear.MultiTaskElasticNet(0.01),
        "multi_task_elastic_net_cv": linear.MultiTaskElasticNetCV(cv=2),
        "multi_task_lasso": linear.MultiTaskLasso(0.01),
        "multi_task_lasso_cv": linear.MultiTaskLassoCV(cv=2),
        "multi_output_regressor": multioutput.MultiOutputRegressor(svm.SVR()),
    }.items():
        yield Case(name, _fit(estimator, X, Y2), {"X": PROBE})
    positive = np.exp(Y * 0.3)
    for name, estimator in {
        "gamma": linear.GammaRegressor(),
        "poisson": linear.PoissonRegressor(),
        "tweedie": linear.TweedieRegressor(power=1.5),
        "tweedie_identity": linear.TweedieRegressor(power=0, link="identity"),
        "hist_poisson": ensemble.HistGradientBoostingRegressor(loss="poisson", max_iter=5, min_samples_leaf=3),
    }.items():
        yield Case(name, _fit(estimator, X, positive), {"X": PROBE})
    yield Case(
        "gaussian_process_std", _fit(_clone(plain["gaussian_process"]), X, Y), {"X": PROBE}, {"return_std": True}
    )
    probe = PROBE.copy()
    probe[::2, 1] = np.nan
    x = X.copy()
    x[::3, 1] = np.nan
    yield Case("hist_missing", _fit(_clone(plain["hist_gradient_boosting_regressor"]), x, Y), {"X": probe})
    yield Case("tree_missing", _fit(_clone(plain["tree_regressor"]), x, Y), {"X": probe})
    yield Case("forest_missing", _fit(_clone(plain["forest_regressor"]), x, Y), {"X": probe})


def outliers_and_clusters() -> Iterator[Case]:
    for name, estimator in {
        "kmeans": cluster.KMeans(3, n_init=2, random_state=0),
        "minibatch_kmeans": cluster.MiniBatchKMeans(3, n_init=2, random_state=0),
        "isolation_forest": ensemble.IsolationForest(n_estimators=5, random_state=0),
        "isolation_forest_contaminated": ensemble.IsolationForest(n_estimators=5, contamination=0.2, random_state=0),
        "local_outlier_factor": neighbors.LocalOutlierFactor(5, novelty=True),
        "one_class_svm": svm.OneClassSVM(),
        "one_class_svm_poly": svm.OneClassSVM(kernel="poly"),
        "sgd_one_class": linear_model.SGDOneClassSVM(random_state=0),
        "gaussian_mixture": mixture.GaussianMixture(2, random_state=0),
        "gaussian_mixture_tied": mixture.GaussianMixture(2, covariance_type="tied", random_state=0),
        "gaussian_mixture_diag": mixture.GaussianMixture(2, covariance_type="diag", random_state=0),
        "gaussian_mixture_spherical": mixture.GaussianMixture(2, covariance_type="spherical", random_state=0),
        "bayesian_mixture": mixture.BayesianGaussianMixture(n_components=2, random_state=0),
        "nearest_neighbors": neighbors.NearestNeighbors(n_neighbors=3, radius=None),
    }.items():
        yield Case(name, _fit(estimator), {"X": PROBE}, {}, {"": 18, "ai.onnx.ml": 3})
    options = {"score_samples": True}
    yield Case(
        "isolation_forest_scores",
        _fit(ensemble.IsolationForest(n_estimators=5, random_state=0)),
        {"X": PROBE},
        options,
        {"": 18, "ai.onnx.ml": 3},
    )
    yield Case(
        "gaussian_mixture_scores",
        _fit(mixture.GaussianMixture(2, random_state=0)),
        {"X": PROBE},
        options,
        {"": 18, "ai.onnx.ml": 3},
    )
    yield Case(
        "local_outlier_scores",
        _fit(neighbors.LocalOutlierFactor(5, novelty=True)),
        {"X": PROBE},
        options,
        {"": 18, "ai.onnx.ml": 3},
    )


def transformers() -> Iterator[Case]:
    standard_scaler = preprocessing.StandardScaler
    for name, estimator in {
        "standard": standard_scaler(),
        "standard_mean": standard_scaler(with_std=False),
        "standard_std": standard_scaler(with_mean=False),
        "min_max": preprocessing.MinMaxScaler(),
        "min_max_clip": preprocessing.MinMaxScaler((-1, 1), clip=True),
        "max_abs": preprocessing.MaxAbsScaler(),
        "robust": preprocessing.RobustScaler(),
        "normalizer_l1": preprocessing.Normalizer("l1"),
        "normalizer_l2": preprocessing.Normalizer("l2"),
        "normalizer_max": preprocessing.Normalizer("max"),
        "binarizer": preprocessing.Binarizer(threshold=0.2),
        "bins_ordinal": preprocessing.KBinsDiscretizer(
            4, encode="ordinal", strategy="quantile", quantile_method="averaged_inverted_cdf"
        ),
        "bins_onehot": preprocessing.KBinsDiscretizer(4, encode="onehot-dense", strategy="uniform"),
        "bins_sparse": preprocessing.KBinsDiscretizer(4, encode="onehot", strategy="kmeans"),
        "polynomial": preprocessing.PolynomialFeatures(2),
        "polynomial_cubic": preprocessing.PolynomialFeatures(3, include_bias=False, interaction_only=True),
        "power": preprocessing.PowerTransformer(),
        "power_plain": preprocessing.PowerTransformer(standardize=False),
        "quantile_uniform": preprocessing.QuantileTransformer(n_quantiles=10),
        "quantile_normal": preprocessing.QuantileTransformer(n_quantiles=10, output_distribution="normal"),
        "pca": decomposition.PCA(2),
        "pca_whiten": decomposition.PCA(2, whiten=True),
        "incremental_pca": decomposition.IncrementalPCA(2),
        "kernel_pca": decomposition.KernelPCA(2, kernel="rbf"),
        "kernel_pca_poly": decomposition.KernelPCA(2, kernel="poly"),
        "kernel_pca_sigmoid": decomposition.KernelPCA(2, kernel="sigmoid"),
        "kernel_pca_cosine": decomposition.KernelPCA(2, kernel="cosine"),
        "truncated_svd": decomposition.TruncatedSVD(2, random_state=0),
        "random_projection": random_projection.GaussianRandomProjection(2, random_state=0),
        "variance_threshold": feature_selection.VarianceThreshold(0.5),
        "imputer_mean": impute.SimpleImputer(),
        "imputer_median": impute.SimpleImputer(strategy="median"),
        "imputer_constant": impute.SimpleImputer(strategy="constant", fill_value=7),
        "knn_imputer": impute.KNNImputer(n_neighbors=2),
        "knn_transformer": neighbors.KNeighborsTransformer(n_neighbors=3),
        "trees_embedding": ensemble.RandomTreesEmbedding(n_estimators=3, max_depth=2, random_state=0),
        "function": preprocessing.FunctionTransformer(),
    }.items():
        x = X.copy()
        probe = PROBE.copy()
        if "imputer" in name:
            x[::5, 1] = probe[::2, 2] = np.nan
        yield Case(name, _fit(estimator, x), {"X": probe})
    yield Case(
        "power_box_cox",
        _fit(preprocessing.PowerTransformer(method="box-cox"), POSITIVE),
        {"X": np.abs(PROBE) + 0.01},
    )
    gram = rbf_kernel(X, X)
    yield Case(
        "kernel_centerer",
        _fit(preprocessing.KernelCenterer(), gram),
        {"X": rbf_kernel(PROBE, X).astype(np.float32)},
    )
    for name, estimator in {
        "select_k": feature_selection.SelectKBest(k=2),
        "select_fdr": feature_selection.SelectFdr(alpha=0.9),
        "select_fpr": feature_selection.SelectFpr(alpha=0.9),
        "select_fwe": feature_selection.SelectFwe(alpha=0.9),
        "select_percentile": feature_selection.SelectPercentile(percentile=50),
        "select_univariate": feature_selection.GenericUnivariateSelect(mode="k_best", param=2),
        "select_model": feature_selection.SelectFromModel(tree.DecisionTreeClassifier(random_state=0)),
        "rfe": feature_selection.RFE(linear_model.LogisticRegression(), n_features_to_select=2),
        "rfecv": feature_selection.RFECV(linear_model.LogisticRegression(), cv=2),
        "nca": neighbors.NeighborhoodComponentsAnalysis(2, random_state=0),
        "lda_transform": pipeline.make_pipeline(
            discriminant_analysis.LinearDiscriminantAnalysis(n_components=2), standard_scaler()
        ),
    }.items():
        yield Case(name, _fit(estimator, X, C3), {"X": PROBE})
    yield Case(
        "label_binarizer",
        _fit(preprocessing.LabelBinarizer(), np.array([3, 5, 7])),
        {"X": np.array([[5], [7], [3], [5]])},
    )
    yield Case(
        "label_encoder_numbers",
        _fit(preprocessing.LabelEncoder(), np.array([3, 5, 7])),
        {"X": np.array([5, 7, 3, 5])},
    )


def compositions() -> Iterator[Case]:
    scaled = pipeline.make_pipeline(
        preprocessing.StandardScaler(), decomposition.PCA(3), linear_model.LogisticRegression()
    )
    yield Case("pipeline", _fit(scaled, X, C3), {"X": PROBE})
    union = pipeline.make_union(decomposition.PCA(2), preprocessing.MinMaxScaler())
    yield Case("union", _fit(union), {"X": PROBE})
    weighted = pipeline.FeatureUnion(
        [("a", decomposition.PCA(2)), ("b", "passthrough")], transformer_weights={"a": 2.0, "b": 0.5}
    )
    yield Case("union_weighted", _fit(weighted), {"X": PROBE})
    parts = compose.ColumnTransformer(
        [
            ("a", preprocessing.StandardScaler(), [0, 2]),
            ("b", preprocessing.KBinsDiscretizer(3, encode="onehot-dense", strategy="uniform"), [1]),
        ],
        remainder="passthrough",
    )
    yield Case(
        "columns",
        _fit(pipeline.make_pipeline(parts, ensemble.RandomForestClassifier(**SMALL)), X, C3),
        {"X": PROBE},
    )
    dropped = compose.ColumnTransformer(
        [("a", "passthrough", [3]), ("b", preprocessing.MaxAbsScaler(), slice(0, 2))], remainder="drop"
    )
    yield Case("columns_dropped", _fit(dropped), {"X": PROBE})
    deep = ensemble.StackingClassifier(
        [
            ("f", ensemble.RandomForestClassifier(**SMALL)),
            ("s", pipeline.make_pipeline(preprocessing.RobustScaler(), svm.SVC(probability=True, random_state=0))),
        ],
        ensemble.GradientBoostingClassifier(**SMALL),
        cv=2,
    )
    yield Case("stacked_deep", _fit(deep, X, WORDS[C3]), {"X": PROBE})
    yield Case(
        "calibrated_forest",
        _fit(calibration.CalibratedClassifierCV(ensemble.RandomForestClassifier(**SMALL), cv=2), X, C2),
        {"X": PROBE},
    )
    yield Case(
        "one_vs_rest_svc",
        _fit(multiclass.OneVsRestClassifier(svm.SVC(probability=True, random_state=0)), X, C3),
        {"X": PROBE},
    )
    yield Case(
        "ada_boost_logistic",
        _fit(ensemble.AdaBoostClassifier(linear_model.LogisticRegression(), n_estimators=3, random_state=0), X, C3),
        {"X": PROBE},
    )


def number_types() -> Iterator[Case]:
    """Yield models of float64 and int64 features."""
    doubles, integers = X.astype(np.float64), (X * 5).astype(np.int64)
    classifiers = {
        "logistic": linear_model.LogisticRegression(),
        "forest": ensemble.RandomForestClassifier(**SMALL),
        "svc": svm.SVC(),
        "hist": ensemble.HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=3),
        "boosting": ensemble.GradientBoostingClassifier(**SMALL),
        "knn": neighbors.KNeighborsClassifier(3),
        "gaussian_nb": naive_bayes.GaussianNB(),
        "mlp": neural_network.MLPClassifier((5,), max_iter=30, random_state=0),
        "bernoulli": naive_bayes.BernoulliNB(),
        "process": gaussian_process.GaussianProcessClassifier(),
    }
    for name, estimator in classifiers.items():
        yield Case(f"{name}_double", _fit(_clone(estimator), doubles, C3), {"X": PROBE.astype(np.float64)})
        yield Case(f"{name}_int64", _fit(_clone(estimator), integers, C3), {"X": (PROBE * 5).astype(np.int64)})
    for name, estimator in {
        "linear": linear_model.LinearRegression(),
        "forest_regressor": ensemble.RandomForestRegressor(**SMALL),
        "svr": svm.SVR(),
        "hist_regressor": ensemble.HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=3),
        "process_regressor": gaussian_process.GaussianProcessRegressor(alpha=0.1, optimizer=None),
        "knn_regressor": neighbors.KNeighborsRegressor(3),
        "isolation": ensemble.IsolationForest(n_estimators=5, random_state=0),
        "outlier": neighbors.LocalOutlierFactor(5, novelty=True),
        "kmeans": cluster.KMeans(3, n_init=2, random_state=0),
        "mixture": mixture.GaussianMixture(2, random_state=0),
        "pca": decomposition.PCA(2),
        "scaler": preprocessing.StandardScaler(),
        "min_max": preprocessing.MinMaxScaler(),
        "polynomial": preprocessing.PolynomialFeatures(2),
        "normalizer": preprocessing.Normalizer(),
        "binarizer": preprocessing.Binarizer(),
        "robust": preprocessing.RobustScaler(),
        "imputer": impute.SimpleImputer(missing_values=0, strategy="median"),
        "bins": preprocessing.KBinsDiscretizer(3, encode="onehot-dense", strategy="uniform"),
    }.items():
        yield Case(f"{name}_double", _fit(_clone(estimator), doubles, Y), {"X": PROBE.astype(np.float64)})
        yield Case(f"{name}_int64", _fit(_clone(estimator), integers, Y), {"X": (PROBE * 5).astype(np.int64)})


def _clone(estimator: Any) -> Any:
    from sklearn.base import clone

    return clone(estimator)
