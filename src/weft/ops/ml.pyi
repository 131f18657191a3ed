"""Generated from the definitions of the ops: see tests/builder/test_stubs.py"""

from collections.abc import Sequence

from weft.builder.tensor import ArrayLike, Tensor, TensorLike

def array_feature_extractor(x: TensorLike, indices: TensorLike, *, name: str | None = None) -> Tensor: ...
def binarizer(x: TensorLike, *, threshold: float = 0.0, name: str | None = None) -> Tensor: ...
def cast_map(
    x: TensorLike, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1, name: str | None = None
) -> Tensor: ...
def category_mapper(
    x: TensorLike,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
    name: str | None = None,
) -> Tensor: ...
def dict_vectorizer(
    x: TensorLike,
    *,
    int64_vocabulary: Sequence[int] | None = None,
    string_vocabulary: Sequence[str] | None = None,
    name: str | None = None,
) -> Tensor: ...
def feature_vectorizer(
    *inputs: TensorLike, inputdimensions: Sequence[int] | None = None, name: str | None = None
) -> Tensor: ...
def imputer(
    x: TensorLike,
    *,
    imputed_value_floats: Sequence[float] | None = None,
    imputed_value_int64s: Sequence[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
    name: str | None = None,
) -> Tensor: ...
def label_encoder(
    x: TensorLike,
    *,
    keys_strings: Sequence[str] | None = None,
    keys_int64s: Sequence[int] | None = None,
    keys_floats: Sequence[float] | None = None,
    keys_tensor: ArrayLike | None = None,
    values_strings: Sequence[str] | None = None,
    values_int64s: Sequence[int] | None = None,
    values_floats: Sequence[float] | None = None,
    values_tensor: ArrayLike | None = None,
    default_string: str = "_Unused",
    default_int64: int = -1,
    default_float: float = -0.0,
    default_tensor: ArrayLike | None = None,
    name: str | None = None,
) -> Tensor: ...
def linear_classifier(
    x: TensorLike,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] | None = None,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def linear_regressor(
    x: TensorLike,
    *,
    coefficients: Sequence[float] = (),
    intercepts: Sequence[float] | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
    name: str | None = None,
) -> Tensor: ...
def normalizer(x: TensorLike, *, norm: str = "MAX", name: str | None = None) -> Tensor: ...
def one_hot_encoder(
    x: TensorLike,
    *,
    cats_int64s: Sequence[int] | None = None,
    cats_strings: Sequence[str] | None = None,
    zeros: int = 1,
    name: str | None = None,
) -> Tensor: ...
def scaler(
    x: TensorLike, *, offset: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,), name: str | None = None
) -> Tensor: ...
def svm_classifier(
    x: TensorLike,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] = (),
    prob_b: Sequence[float] = (),
    rho: Sequence[float] = (0.0,),
    support_vectors: Sequence[float] | None = None,
    vectors_per_class: Sequence[int] = (),
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def svm_regressor(
    x: TensorLike,
    *,
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float] = (0.0,),
    support_vectors: Sequence[float] | None = None,
    name: str | None = None,
) -> Tensor: ...
def tree_ensemble(
    x: TensorLike,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Sequence[int],
    leaf_weights: ArrayLike,
    membership_values: ArrayLike | None = None,
    n_targets: int = 1,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_hitrates: ArrayLike | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: ArrayLike,
    nodes_splits: ArrayLike,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    post_transform: int = 0,
    tree_roots: Sequence[int],
    name: str | None = None,
) -> Tensor: ...
def tree_ensemble_classifier(
    x: TensorLike,
    *,
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: ArrayLike | None = None,
    class_ids: Sequence[int] = (),
    class_nodeids: Sequence[int] = (),
    class_treeids: Sequence[int] = (),
    class_weights: Sequence[float] = (),
    class_weights_as_tensor: ArrayLike | None = None,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    nodes_falsenodeids: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
    nodes_hitrates: Sequence[float] | None = None,
    nodes_hitrates_as_tensor: ArrayLike | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: Sequence[str] = (),
    nodes_nodeids: Sequence[int] = (),
    nodes_treeids: Sequence[int] = (),
    nodes_truenodeids: Sequence[int] = (),
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: ArrayLike | None = None,
    post_transform: str = "NONE",
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def tree_ensemble_regressor(
    x: TensorLike,
    *,
    aggregate_function: str = "SUM",
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: ArrayLike | None = None,
    n_targets: int = 1,
    nodes_falsenodeids: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
    nodes_hitrates: Sequence[float] | None = None,
    nodes_hitrates_as_tensor: ArrayLike | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: Sequence[str] = (),
    nodes_nodeids: Sequence[int] = (),
    nodes_treeids: Sequence[int] = (),
    nodes_truenodeids: Sequence[int] = (),
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: ArrayLike | None = None,
    post_transform: str = "NONE",
    target_ids: Sequence[int] = (),
    target_nodeids: Sequence[int] = (),
    target_treeids: Sequence[int] = (),
    target_weights: Sequence[float] = (),
    target_weights_as_tensor: ArrayLike | None = None,
    name: str | None = None,
) -> Tensor: ...
def zip_map(
    x: TensorLike,
    *,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    name: str | None = None,
) -> Tensor: ...
