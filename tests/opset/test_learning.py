"""ai.onnx.ml against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from opset.oracle import check, node_model, random_array, run_onnxruntime
from peers import onnxruntime_run

import weft
from weft.errors import ExecutionError, InvalidModelError

DOMAIN = "ai.onnx.ml"
Array = np.ndarray[Any, Any]
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def learned(op: str, inputs: list[Array], opset: int = 1, **options: Any) -> None:
    check(op, inputs, opset=opset, domain=DOMAIN, **options)


def text(*strings: str) -> Array:
    return np.array(strings, object)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Normalizer", {"norm": "MAX"}),
        ("Normalizer", {"norm": "L1"}),
        ("Normalizer", {"norm": "L2"}),
        ("Scaler", {"offset": [0.5, -1.0, 2.0, 0.0], "scale": [2.0, 0.5, 1.0, 3.0]}),
        ("Scaler", {"offset": [1.0], "scale": [0.25]}),
    ],
)
def test_numeric_features(op: str, attributes: dict[str, Any], dtype: Any) -> None:
    learned(op, [random_array(1, (3, 4), dtype, 1, 9)], **attributes)


def test_binarizer() -> None:
    learned("Binarizer", [random_array(2, (3, 4))], threshold=0.5)


def test_array_feature_extractor() -> None:
    learned("ArrayFeatureExtractor", [random_array(3, (2, 5)), np.array([3, 0, 3], np.int64)])
    learned("ArrayFeatureExtractor", [random_array(3, (5,)), np.array([[1, 2]], np.int64)])
    learned("ArrayFeatureExtractor", [text("a", "b", "c"), np.array([2], np.int64)])


def test_feature_vectorizer() -> None:
    inputs = [random_array(4, (2, 3)), random_array(5, (2, 2))]
    learned("FeatureVectorizer", inputs, inputdimensions=[3, 2])


@pytest.mark.parametrize("replaced", [1.0, float("nan")])
def test_imputer(replaced: float) -> None:
    x = np.array([[1, np.nan, 3], [4, 1, np.nan]], np.float32)
    learned("Imputer", [x], imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=replaced)
    learned("Imputer", [x], imputed_value_floats=[7.0], replaced_value_float=replaced)


def test_imputer_of_integers() -> None:
    x = np.array([[1, 2, 3], [4, 1, 1]], np.int64)
    learned("Imputer", [x], imputed_value_int64s=[-1], replaced_value_int64=1)


def test_category_mapper() -> None:
    categories: dict[str, Any] = {"cats_int64s": [5, 7, 9], "cats_strings": ["a", "b", "c"]}
    learned("CategoryMapper", [text("b", "z", "a")], **categories, default_int64=-3)
    learned("CategoryMapper", [np.array([[9, 1], [5, 7]], np.int64)], **categories, default_string="?")


@pytest.mark.parametrize(
    ("x", "attributes"),
    [
        (text("b", "z"), {"keys_strings": ["a", "b"], "values_int64s": [1, 2], "default_int64": 9}),
        (text("b", "z"), {"keys_strings": ["a", "b"], "values_floats": [1.5, 2.5]}),
        (text("b", "z"), {"keys_strings": ["a", "b"], "values_strings": ["x", "y"]}),
        (np.array([1, 3, 2]), {"keys_int64s": [1, 2], "values_strings": ["one", "two"], "default_string": "?"}),
        (np.array([1, 3, 2]), {"keys_int64s": [1, 2], "values_floats": [0.1, 0.2], "default_float": -1.0}),
        (np.array([1, 5], np.float32), {"keys_floats": [1.0, 2.0], "values_strings": ["a", "b"]}),
    ],
)
def test_label_encoder(x: Array, attributes: dict[str, Any]) -> None:
    learned("LabelEncoder", [x], opset=2, **attributes)


def test_label_encoder_finds_nan() -> None:
    x = np.array([1, np.nan, 7], np.float32)
    learned("LabelEncoder", [x], opset=4, keys_floats=[1.0, np.nan], values_int64s=[4, 5])


def test_label_encoder_1() -> None:
    learned("LabelEncoder", [text("b", "z", "a")], classes_strings=["a", "b"], default_int64=7)
    learned("LabelEncoder", [np.array([1, 0, 5])], classes_strings=["a", "b"], default_string="none")


def test_one_hot_encoder() -> None:
    learned("OneHotEncoder", [np.array([[1, 3], [2, 9]], np.int64)], cats_int64s=[1, 2, 3], zeros=1)
    learned("OneHotEncoder", [np.array([1.0, 2.0], np.float32)], cats_int64s=[1, 2], zeros=0)
    learned("OneHotEncoder", [text("b", "q")], cats_strings=["a", "b"], zeros=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_number_is_no_category(dtype: Any) -> None:
    x = np.array([[1, np.nan], [0, 7]], dtype)
    learned(
        "OneHotEncoder", [x], cats_int64s=[1, 0, -(2**63)], zeros=1, expected=[np.float32(x[..., None] == [1, 0, -1])]
    )


def test_scores_that_are_no_numbers_stay_so() -> None:
    x = np.array([[np.nan], [1]], np.float32)
    learned("LinearRegressor", [x], coefficients=[1.0, 2.0], targets=2, post_transform="SOFTMAX_ZERO")


def test_one_hot_encoder_refuses_unknown_categories() -> None:
    with pytest.raises(ExecutionError):
        learned("OneHotEncoder", [np.array([4], np.int64)], cats_int64s=[1, 2], zeros=0, expected=[None])


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_regressor(transform: str) -> None:
    learned(
        "LinearRegressor",
        [random_array(7, (5, 4), low=0, high=0.2)],
        coefficients=random_array(6, (12,), low=0, high=1).tolist(),
        intercepts=[0.1, 0.2, 0.3],
        targets=3,
        post_transform=transform,
        rtol=1e-4,
    )


def test_linear_regressor_with_one_target() -> None:
    x = random_array(8, (5, 2))
    score = x @ np.array([[0.5], [-1.0]], np.float32) + np.float32(0.25)
    options: dict[str, Any] = {"coefficients": [0.5, -1.0], "intercepts": [0.25]}
    learned("LinearRegressor", [x], **options)
    learned("LinearRegressor", [x], **options, post_transform="LOGISTIC", expected=[1 / (1 + np.exp(-score))])


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
@pytest.mark.parametrize("labels", [[3, 5, 9], ["x", "y", "z"], [0, 1]])
def test_linear_classifier(labels: list[Any], transform: str) -> None:
    name = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_ints"
    learned(
        "LinearClassifier",
        [random_array(9, (6, 4))],
        outputs=2,
        coefficients=random_array(10, (len(labels) * 4,), low=-1, high=1).tolist(),
        intercepts=random_array(11, (len(labels),), low=-1, high=1).tolist(),
        post_transform=transform,
        **{name: labels},
    )


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("labels", [{"classlabels_ints": [3, 7]}, {"classlabels_strings": ["no", "yes"]}])
def test_linear_classifier_with_one_score(labels: dict[str, Any], transform: str) -> None:
    options: dict[str, Any] = {"coefficients": [0.5, -1.0], "intercepts": [0.25], "post_transform": transform}
    learned("LinearClassifier", [random_array(9, (6, 2))], outputs=2, **options, **labels)


KERNELS = [
    ("LINEAR", [0.0, 0.0, 0.0]),
    ("POLY", [0.3, 0.5, 3.0]),
    ("RBF", [0.4, 0.0, 0.0]),
    ("SIGMOID", [0.1, 0.2, 0.0]),
]


@pytest.mark.parametrize(("kernel", "parameters"), KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, parameters: list[float], one_class: int) -> None:
    learned(
        "SVMRegressor",
        [random_array(12, (6, 3))],
        rtol=1e-4,
        atol=1e-5,
        coefficients=random_array(13, (5,), low=-1, high=1).tolist(),
        support_vectors=random_array(14, (15,)).tolist(),
        n_supports=5,
        kernel_type=kernel,
        kernel_params=parameters,
        one_class=one_class,
        rho=[0.25],
    )


def test_linear_svm_regressor() -> None:
    options: dict[str, Any] = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0], "n_supports": 0}
    learned("SVMRegressor", [random_array(15, (6, 3))], coefficients=[0.5, -1.0, 2.0], rho=[0.5], **options)


@pytest.mark.parametrize(("kernel", "parameters"), KERNELS)
@pytest.mark.parametrize("labels", [[0, 1], [1, 2, 4], ["a", "b", "c", "d"]])
@pytest.mark.parametrize("probabilities", [False, True])
def test_svm_classifier(kernel: str, parameters: list[float], labels: list[Any], probabilities: bool) -> None:
    count = len(labels)
    duels = count * (count - 1) // 2
    name = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_ints"
    extra: dict[str, Any] = {}
    if probabilities:
        extra = {"prob_a": random_array(16, (duels,), low=-2, high=-1).tolist(), "prob_b": [0.1] * duels}
    learned(
        "SVMClassifier",
        [random_array(17, (7, 3))],
        outputs=2,
        rtol=1e-4,
        atol=1e-5,
        coefficients=random_array(18, ((count - 1) * count * 2,), low=-1, high=1).tolist(),
        support_vectors=random_array(19, (count * 2 * 3,)).tolist(),
        vectors_per_class=[2] * count,
        kernel_type=kernel,
        kernel_params=parameters,
        rho=random_array(20, (duels,), low=-0.5, high=0.5).tolist(),
        **{name: labels},
        **extra,
    )


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_linear_svm_classifier(transform: str) -> None:
    learned(
        "SVMClassifier",
        [random_array(21, (6, 3))],
        outputs=2,
        coefficients=random_array(22, (9,)).tolist(),
        classlabels_ints=[1, 2, 4],
        kernel_type="LINEAR",
        kernel_params=[0.0, 0.0, 0.0],
        rho=[0.1, 0.1, 0.1],
        post_transform=transform,
    )


def forest(seed: int, trees: int, depth: int, features: int, mode: str | None = None) -> dict[str, Any]:
    """Complete trees with random splits; node ids begin at 0 in each tree."""
    generator = np.random.default_rng(seed)
    inner, total = 2**depth - 1, 2 ** (depth + 1) - 1
    names = ["treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing"]
    nodes: dict[str, list[Any]] = {name: [] for name in names}
    for tree in range(trees):
        for node in range(total):
            leaf = node >= inner
            nodes["treeids"].append(tree)
            nodes["nodeids"].append(node)
            nodes["featureids"].append(0 if leaf else int(generator.integers(features)))
            nodes["values"].append(0.0 if leaf else float(np.float32(generator.integers(-2, 3))))
            nodes["modes"].append("LEAF" if leaf else mode or str(generator.choice(MODES)))
            nodes["truenodeids"].append(0 if leaf else 2 * node + 1)
            nodes["falsenodeids"].append(0 if leaf else 2 * node + 2)
            nodes["missing"].append(0 if leaf else int(generator.integers(2)))
    nodes["missing_value_tracks_true"] = nodes.pop("missing")
    return {f"nodes_{name}": content for name, content in nodes.items()}


def leaves(prefix: str, attributes: dict[str, Any], targets: list[int], seed: int, low: float) -> dict[str, Any]:
    """Weights for every leaf and each of the targets."""
    generator = np.random.default_rng(seed)
    at = [i for i, mode in enumerate(attributes["nodes_modes"]) if mode == "LEAF" for _ in targets]
    return {
        f"{prefix}_treeids": [attributes["nodes_treeids"][i] for i in at],
        f"{prefix}_nodeids": [attributes["nodes_nodeids"][i] for i in at],
        f"{prefix}_ids": targets * (len(at) // len(targets)),
        f"{prefix}_weights": generator.uniform(low, 1, len(at)).astype(np.float32).tolist(),
    }


def feature_rows(seed: int) -> Array:
    """Small whole numbers, some of them missing."""
    x = random_array(seed, (9, 4), np.int64, -2, 2).astype(np.float32)
    x[1, 2] = x[4, 0] = np.nan
    return x


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize(
    "mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", None]
)
def test_tree_ensemble_regressor(aggregate: str, targets: int, mode: str | None) -> None:
    attributes = forest(23, trees=4, depth=3, features=4, mode=mode)
    attributes |= leaves("target", attributes, list(range(targets)), 24, -1)
    learned(
        "TreeEnsembleRegressor",
        [feature_rows(25)],
        aggregate_function=aggregate,
        n_targets=targets,
        base_values=[0.5] * targets,
        **attributes,
    )


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
@pytest.mark.parametrize("labels", [[0, 1, 2], ["a", "b", "c", "d"]])
def test_tree_ensemble_classifier(labels: list[Any], dtype: Any, transform: str) -> None:
    attributes = forest(26, trees=5, depth=2, features=4, mode="BRANCH_LEQ")
    attributes |= leaves("class", attributes, list(range(len(labels))), 27, -1)
    name = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_int64s"
    x = random_array(28, (6, 4), dtype)
    learned("TreeEnsembleClassifier", [x], outputs=2, post_transform=transform, **{name: labels}, **attributes)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("low", [0.0, -1.0])
@pytest.mark.parametrize(("used", "base"), [(0, None), (0, [0.3]), (1, None)])
def test_two_classes_with_weights_for_one(used: int, base: list[float] | None, low: float, transform: str) -> None:
    attributes = forest(29, trees=2, depth=2, features=4, mode="BRANCH_LT")
    attributes |= leaves("class", attributes, [used], 30, low)
    attributes |= {} if base is None else {"base_values": base}
    x = random_array(31, (8, 4))
    learned("TreeEnsembleClassifier", [x], outputs=2, post_transform=transform, classlabels_int64s=[4, 7], **attributes)


def test_two_classes_with_weights_for_both() -> None:
    attributes = forest(29, trees=2, depth=2, features=4, mode="BRANCH_LT")
    attributes |= leaves("class", attributes, [0, 1], 30, -1)
    x = random_array(31, (8, 4))
    as_targets = {name.replace("class_", "target_"): content for name, content in attributes.items()}
    model = node_model("TreeEnsembleRegressor", [x], opset=1, domain=DOMAIN, n_targets=2, **as_targets)
    scores = run_onnxruntime(model, [x])[0]
    expected = [np.array([4, 7])[scores.argmax(axis=1)], scores]
    learned("TreeEnsembleClassifier", [x], outputs=2, classlabels_int64s=[4, 7], expected=expected, **attributes)


STUMP: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.0, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
BOTH_SIDES = np.array([[-1], [1]], np.float32)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [[0, 0, 0, 0, 0], [0, 1, 0, 1, 1]])
def test_a_leaf_with_several_weights_for_a_target(targets: list[int], aggregate: str) -> None:
    weights = {
        "target_treeids": [0] * 5,
        "target_nodeids": [1, 2, 1, 2, 1],
        "target_weights": [5.0, 10.0, 7.0, 20.0, 3.0],
    }
    learned(
        "TreeEnsembleRegressor",
        [BOTH_SIDES],
        n_targets=max(targets) + 1,
        aggregate_function=aggregate,
        target_ids=targets,
        **STUMP,
        **weights,
    )


@pytest.mark.parametrize("base", [None, [0.0, 0.0, 0.0]])
@pytest.mark.parametrize("classes", [[0, 0], [1, 1], [0, 2]])
def test_a_class_without_a_score_is_not_chosen(classes: list[int], base: list[float] | None) -> None:
    weights = {"class_treeids": [0, 0], "class_nodeids": [1, 2], "class_weights": [-0.5, -0.25]}
    options = {} if base is None else {"base_values": base}
    labels = {"classlabels_int64s": [5, 6, 7], "class_ids": classes}
    learned("TreeEnsembleClassifier", [BOTH_SIDES], outputs=2, **labels, **STUMP, **weights, **options)


def test_a_lone_constant_string_is_kept_by_the_cache() -> None:
    """skl2onnx fills missing texts in with a label that it looks up for a constant."""
    value = helper.make_tensor_value_info
    node = helper.make_node
    nodes = [
        node("LabelEncoder", ["zero"], ["filled"], domain=DOMAIN, keys_int64s=[0], values_strings=["none"]),
        node("LabelEncoder", ["x"], ["number"], domain=DOMAIN, keys_strings=[""], values_int64s=[1], default_int64=0),
        node("Cast", ["number"], ["missing"], to=9),
        node("Where", ["missing", "filled", "x"], ["y"]),
    ]
    zero = helper.make_tensor("zero", 7, [1], [0])
    graph = helper.make_graph(nodes, "fill", [value("x", 8, ["n"])], [value("y", 8, ["n"])], [zero])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 2)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    x = text("a", "", "b")
    for _ in range(2):
        assert (
            weft.load(model, device="cpu").run({"x": x})["y"].tolist() == onnxruntime_run(model, {"x": x})[0].tolist()
        )


@pytest.mark.parametrize("shape", [None, [1], []])
def test_a_map_holds_plain_numbers(shape: list[int] | None) -> None:
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain=DOMAIN, string_vocabulary=["a", "b"])
    map_type = helper.make_map_type_proto(8, helper.make_tensor_type_proto(1, shape))
    output = helper.make_tensor_value_info("y", 1, [1, 2])
    graph = helper.make_graph([node], "g", [helper.make_value_info("x", map_type)], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)])
    assert weft.load(model).run({"x": {"b": 2.5, "z": 1.0}})["y"].tolist() == [[0.0, 2.5]]


def test_maps() -> None:
    from onnx import helper

    scores = helper.make_tensor_value_info("x", 1, ["n", 2])
    zipped = helper.make_node("ZipMap", ["x"], ["y"], domain=DOMAIN, classlabels_strings=["a", "b"])
    graph = helper.make_graph([zipped], "zip", [scores], [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(DOMAIN, 1)])
    (row,) = weft.load(model)(np.array([[0.25, 0.75]], np.float32))
    assert row == {"a": 0.25, "b": 0.75}
    assert {type(number) for number in row.values()} == {float}  # which json takes


def test_a_tree_that_leads_back_is_refused() -> None:
    attributes = forest(32, trees=1, depth=1, features=1)
    attributes["nodes_truenodeids"][0] = 0
    attributes |= leaves("target", attributes, [0], 33, 0)
    with pytest.raises(InvalidModelError, match="leads back"):
        learned("TreeEnsembleRegressor", [random_array(34, (1, 1))], n_targets=1, expected=[None], **attributes)


@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_GT", "BRANCH_NEQ"])
@pytest.mark.parametrize("rows", [1, 37])
def test_deep_uneven_trees_like_onnxruntime(mode: str, rows: int) -> None:
    """Many walks end long before the deepest one, which is where vectors of them stop asking."""
    rng = np.random.default_rng(21)
    attributes: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    leaves: list[tuple[int, int, float]] = []
    for tree in range(21):
        open_nodes, created = [(0, 0)], 1
        while open_nodes:
            number, depth = open_nodes.pop()
            is_leaf = depth == 13 or (depth > 0 and rng.random() < 0.45)
            row = (tree, number, 0, 0.0, "LEAF", 0, 0)
            if is_leaf:
                leaves.append((tree, number, float(rng.standard_normal())))
            else:
                threshold = float(np.float32(rng.integers(-1, 2)))
                row = (tree, number, int(rng.integers(5)), threshold, mode, created, created + 1)
                open_nodes += [(created, depth + 1), (created + 1, depth + 1)]
                created += 2
            for values, entry in zip(attributes.values(), row):
                values.append(entry)
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        target_treeids=[tree for tree, _, _ in leaves],
        target_nodeids=[number for _, number, _ in leaves],
        target_ids=[0] * len(leaves),
        target_weights=[weight for _, _, weight in leaves],
        **{f"nodes_{name}": values for name, values in attributes.items()},
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [value("x", 1, ["n", 5])], [value("y", 1, ["n", 1])])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    x = rng.integers(-2, 3, (rows, 5)).astype(np.float32)
    (expected,) = onnxruntime_run(model, {"x": x})
    np.testing.assert_allclose(weft.load(model, device="cpu").run({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("features", [3, 2**20])
@pytest.mark.parametrize("mode", ["BRANCH_LEQ", None])
@pytest.mark.parametrize(("trees", "depth"), [(1, 1), (3, 5), (20, 6), (33, 3), (5, 9)])
def test_forests_of_all_sizes_like_onnxruntime(trees: int, depth: int, mode: str | None, features: int) -> None:
    """Nodes in one word and in several, walked at once and in turns."""
    attributes = forest(trees, trees=trees, depth=depth, features=features, mode=mode)
    attributes |= leaves("target", attributes, [0], 24, -1)
    generator = np.random.default_rng(depth)
    x = np.zeros((5, features), np.float32)
    used = np.unique(attributes["nodes_featureids"])
    x[:, used] = generator.integers(-2, 3, (5, len(used)))
    x[0, used[::2]] = np.nan
    learned("TreeEnsembleRegressor", [x], n_targets=1, **attributes)


SURPLUS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "classifier": (
        "LinearClassifier",
        2,
        {"coefficients": range(8), "intercepts": [0.5, 1.0], "classlabels_ints": [3, 7]},
    ),
    "classifier of one score": (
        "LinearClassifier",
        2,
        {"coefficients": range(5), "intercepts": [-1.0], "classlabels_ints": [3, 7]},
    ),
    "regressor": ("LinearRegressor", 1, {"coefficients": range(5)}),
    "regressor of two targets": (
        "LinearRegressor",
        1,
        {"coefficients": range(7), "targets": 2, "intercepts": [1.0, 2.0]},
    ),
    "intercepts": ("LinearRegressor", 1, {"coefficients": [0.5, 0.25], "intercepts": [1.0, 2.0]}),
    "intercepts of fewer targets": (
        "LinearRegressor",
        1,
        {"coefficients": range(4), "targets": 2, "intercepts": [1.0]},
    ),
    "support vectors": (
        "SVMRegressor",
        1,
        {
            "coefficients": range(4),
            "support_vectors": [0.25, 0.5, 0.75, 1.0, 1.25, 1.5],
            "n_supports": 3,
            "kernel_type": "RBF",
            "kernel_params": [0.5, 0.0, 3.0],
            "rho": [0.25, 1.0],
        },
    ),
    "support vectors of classes": (
        "SVMClassifier",
        2,
        {
            "coefficients": range(6),
            "support_vectors": [0.25 * number for number in range(8)],
            "vectors_per_class": [2, 2],
            "kernel_type": "RBF",
            "kernel_params": [0.5, 0.0, 3.0],
            "classlabels_ints": [3, 7],
            "rho": [0.25, 1.0],
            "prob_a": [-1.0],
            "prob_b": [0.5],
        },
    ),
    "imputer": ("Imputer", 1, {"imputed_value_floats": [7.0, 8.0, 9.0], "replaced_value_float": float("nan")}),
}


@pytest.mark.parametrize("name", SURPLUS)
def test_surplus_numbers_are_not_read(name: str) -> None:
    """onnxruntime uses the first coefficients, and intercepts only where there are as many as scores."""
    op, outputs, attributes = SURPLUS[name]
    numbers = {
        key: [float(number) for number in value] if isinstance(value, range) else value
        for key, value in attributes.items()
    }
    x = random_array(31, (4, 2))
    x[0, 1] = np.nan if op == "Imputer" else x[0, 1]
    learned(op, [x], outputs=outputs, **numbers)


@pytest.mark.parametrize("flags", [[1], [1, 1], [1, 1, 1, 1]])
def test_flags_of_fewer_or_more_nodes(flags: list[int]) -> None:
    tree = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.1, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.5, -2.0],
        "n_targets": 1,
    }
    x = np.array([[np.nan], [0.0], [1.0]], np.float32)
    learned("TreeEnsembleRegressor", [x], nodes_missing_value_tracks_true=flags, **tree)


@pytest.mark.parametrize("op", ["LinearRegressor", "LinearClassifier", "SVMRegressor", "SVMClassifier"])
def test_too_few_coefficients_are_refused(op: str) -> None:
    classes = {"classlabels_ints": [3, 7]} if op.endswith("Classifier") else {}
    model = node_model(
        op,
        [random_array(32, (4, 3))],
        opset=1,
        domain=DOMAIN,
        outputs=1 + bool(classes),
        coefficients=[1.0, 2.0],
        **classes,
    )
    with pytest.raises(InvalidModelError, match="2 coefficients"):
        weft.load(model)
