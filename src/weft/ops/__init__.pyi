"""Generated from the definitions of the ops: see tests/builder/test_stubs.py"""

from collections.abc import Callable, Sequence
from typing import Literal, overload

from weft.builder.namespaces import Functions
from weft.builder.tensor import ArrayLike, DTypeLike, Tensor, TensorLike
from weft.ir.types import Type
from weft.ops import microsoft as microsoft
from weft.ops import ml as ml
from weft.ops import preview as preview
from weft.ops import preview_training as preview_training

domain = Functions

def abs(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def acos(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def acosh(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def add(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def affine_grid(theta: TensorLike, size: TensorLike, *, align_corners: int = 0, name: str | None = None) -> Tensor: ...
def and_(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def arg_max(
    x: TensorLike, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0, name: str | None = None
) -> Tensor: ...
def arg_min(
    x: TensorLike, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0, name: str | None = None
) -> Tensor: ...
def asin(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def asinh(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def atan(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def atanh(x: TensorLike, *, name: str | None = None) -> Tensor: ...
@overload
def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    mask: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: DTypeLike | None = None,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    mask: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: DTypeLike | None = None,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    mask: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: DTypeLike | None = None,
    outputs: Literal[3],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    mask: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: DTypeLike | None = None,
    outputs: Literal[4],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def average_pool(
    x: TensorLike,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
@overload
def batch_normalization(
    x: TensorLike,
    scale: TensorLike,
    bias: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    *,
    epsilon: float = 1e-05,
    momentum: float = 0.9,
    training_mode: int = 0,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def batch_normalization(
    x: TensorLike,
    scale: TensorLike,
    bias: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    *,
    epsilon: float = 1e-05,
    momentum: float = 0.9,
    training_mode: int = 0,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def batch_normalization(
    x: TensorLike,
    scale: TensorLike,
    bias: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    *,
    epsilon: float = 1e-05,
    momentum: float = 0.9,
    training_mode: int = 0,
    outputs: Literal[3],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
def bernoulli(
    probability: TensorLike, *, dtype: DTypeLike | None = None, seed: float | None = None, name: str | None = None
) -> Tensor: ...
def bit_cast(x: TensorLike, *, to: DTypeLike, name: str | None = None) -> Tensor: ...
def bit_shift(x: TensorLike, amount: TensorLike, *, direction: str, name: str | None = None) -> Tensor: ...
def bitwise_and(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def bitwise_not(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def bitwise_or(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def bitwise_xor(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def blackman_window(
    size: TensorLike, *, periodic: int = 1, output_datatype: DTypeLike = 1, name: str | None = None
) -> Tensor: ...
def cast(
    x: TensorLike, *, to: DTypeLike, saturate: int = 1, round_mode: str = "up", name: str | None = None
) -> Tensor: ...
def cast_like(
    x: TensorLike, target: TensorLike, *, saturate: int = 1, round_mode: str = "up", name: str | None = None
) -> Tensor: ...
def causal_conv_with_state(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    past_state: TensorLike | None = None,
    *,
    activation: str = "none",
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def ceil(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def celu(x: TensorLike, *, alpha: float = 1.0, name: str | None = None) -> Tensor: ...
def center_crop_pad(
    x: TensorLike, shape: TensorLike, *, axes: Sequence[int] | None = None, name: str | None = None
) -> Tensor: ...
def clip(
    x: TensorLike, min: TensorLike | None = None, max: TensorLike | None = None, *, name: str | None = None
) -> Tensor: ...
def col2im(
    x: TensorLike,
    image_shape: TensorLike,
    block_shape: TensorLike,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def compress(x: TensorLike, condition: TensorLike, *, axis: int | None = None, name: str | None = None) -> Tensor: ...
def concat(*inputs: TensorLike, axis: int, name: str | None = None) -> Tensor: ...
def concat_from_sequence(sequence: TensorLike, *, axis: int, new_axis: int = 0, name: str | None = None) -> Tensor: ...
def constant(
    *,
    value: ArrayLike | None = None,
    sparse_value: ArrayLike | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
    name: str | None = None,
) -> Tensor: ...
def constant_of_shape(shape: TensorLike, *, value: ArrayLike | None = None, name: str | None = None) -> Tensor: ...
def conv(
    x: TensorLike,
    w: TensorLike,
    b: TensorLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def conv_integer(
    x: TensorLike,
    w: TensorLike,
    x_zero_point: TensorLike | None = None,
    w_zero_point: TensorLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def conv_transpose(
    x: TensorLike,
    w: TensorLike,
    b: TensorLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def cos(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def cosh(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def cum_prod(
    x: TensorLike, axis: TensorLike, *, exclusive: int = 0, reverse: int = 0, name: str | None = None
) -> Tensor: ...
def cum_sum(
    x: TensorLike, axis: TensorLike, *, exclusive: int = 0, reverse: int = 0, name: str | None = None
) -> Tensor: ...
def deform_conv(
    x: TensorLike,
    w: TensorLike,
    offset: TensorLike,
    b: TensorLike | None = None,
    mask: TensorLike | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def depth_to_space(x: TensorLike, *, blocksize: int, mode: str = "DCR", name: str | None = None) -> Tensor: ...
def dequantize_linear(
    x: TensorLike,
    scale: TensorLike,
    zero_point: TensorLike | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DTypeLike = 0,
    name: str | None = None,
) -> Tensor: ...
def det(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def dft(
    x: TensorLike,
    length: TensorLike | None = None,
    axis: TensorLike | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
    name: str | None = None,
) -> Tensor: ...
def div(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
@overload
def dropout(
    x: TensorLike,
    ratio: TensorLike | None = None,
    training: TensorLike | None = None,
    *,
    seed: int | None = None,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def dropout(
    x: TensorLike,
    ratio: TensorLike | None = None,
    training: TensorLike | None = None,
    *,
    seed: int | None = None,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def dynamic_quantize_linear(x: TensorLike, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]: ...
def einsum(*inputs: TensorLike, equation: str, name: str | None = None) -> Tensor: ...
def elu(x: TensorLike, *, alpha: float = 1.0, name: str | None = None) -> Tensor: ...
def equal(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def erf(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def exp(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def expand(x: TensorLike, shape: TensorLike, *, name: str | None = None) -> Tensor: ...
def eye_like(x: TensorLike, *, dtype: DTypeLike | None = None, k: int = 0, name: str | None = None) -> Tensor: ...
def flatten(x: TensorLike, *, axis: int = 1, name: str | None = None) -> Tensor: ...
def floor(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def gather(x: TensorLike, indices: TensorLike, *, axis: int = 0, name: str | None = None) -> Tensor: ...
def gather_elements(x: TensorLike, indices: TensorLike, *, axis: int = 0, name: str | None = None) -> Tensor: ...
def gather_nd(x: TensorLike, indices: TensorLike, *, batch_dims: int = 0, name: str | None = None) -> Tensor: ...
def gelu(x: TensorLike, *, approximate: str = "none", name: str | None = None) -> Tensor: ...
def gemm(
    a: TensorLike,
    b: TensorLike,
    c: TensorLike | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    name: str | None = None,
) -> Tensor: ...
def global_average_pool(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def global_lp_pool(x: TensorLike, *, p: int = 2, name: str | None = None) -> Tensor: ...
def global_max_pool(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def greater(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def greater_or_equal(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def grid_sample(
    x: TensorLike,
    grid: TensorLike,
    *,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: int = 0,
    name: str | None = None,
) -> Tensor: ...
def group_normalization(
    x: TensorLike,
    scale: TensorLike,
    bias: TensorLike,
    *,
    epsilon: float = 1e-05,
    num_groups: int,
    stash_type: DTypeLike = 1,
    name: str | None = None,
) -> Tensor: ...
def gru(
    x: TensorLike,
    w: TensorLike,
    r: TensorLike,
    b: TensorLike | None = None,
    sequence_lens: TensorLike | None = None,
    initial_h: TensorLike | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def hamming_window(
    size: TensorLike, *, periodic: int = 1, output_datatype: DTypeLike = 1, name: str | None = None
) -> Tensor: ...
def hann_window(
    size: TensorLike, *, periodic: int = 1, output_datatype: DTypeLike = 1, name: str | None = None
) -> Tensor: ...
def hard_sigmoid(x: TensorLike, *, alpha: float = 0.2, beta: float = 0.5, name: str | None = None) -> Tensor: ...
def hard_swish(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def hardmax(x: TensorLike, *, axis: int = -1, name: str | None = None) -> Tensor: ...
def identity(x: TensorLike, *, name: str | None = None) -> Tensor: ...
@overload
def if_(
    condition: TensorLike,
    then: Callable[[], Tensor | float],
    otherwise: Callable[[], Tensor | float],
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def if_(
    condition: TensorLike,
    then: Callable[[], Sequence[TensorLike]],
    otherwise: Callable[[], Sequence[TensorLike]],
    *,
    name: str | None = None,
) -> tuple[Tensor, ...]: ...
def image_decoder(encoded_stream: TensorLike, *, pixel_format: str = "RGB", name: str | None = None) -> Tensor: ...
def instance_normalization(
    x: TensorLike, scale: TensorLike, bias: TensorLike, *, epsilon: float = 1e-05, name: str | None = None
) -> Tensor: ...
def is_inf(x: TensorLike, *, detect_negative: int = 1, detect_positive: int = 1, name: str | None = None) -> Tensor: ...
def is_nan(x: TensorLike, *, name: str | None = None) -> Tensor: ...
@overload
def layer_normalization(
    x: TensorLike,
    scale: TensorLike,
    bias: TensorLike | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: DTypeLike = 1,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def layer_normalization(
    x: TensorLike,
    scale: TensorLike,
    bias: TensorLike | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: DTypeLike = 1,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def layer_normalization(
    x: TensorLike,
    scale: TensorLike,
    bias: TensorLike | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: DTypeLike = 1,
    outputs: Literal[3],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
def leaky_relu(x: TensorLike, *, alpha: float = 0.01, name: str | None = None) -> Tensor: ...
def less(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def less_or_equal(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def linear_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    past_state: TensorLike | None = None,
    decay: TensorLike | None = None,
    beta: TensorLike | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def log(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def log_softmax(x: TensorLike, *, axis: int = -1, name: str | None = None) -> Tensor: ...
def loop(
    trip_count: TensorLike | None,
    condition: TensorLike | None,
    states: Sequence[TensorLike],
    body: Callable[..., Sequence[TensorLike | None]],
    *,
    name: str | None = None,
) -> tuple[Tensor, ...]: ...
def lp_normalization(x: TensorLike, *, axis: int = -1, p: int = 2, name: str | None = None) -> Tensor: ...
def lp_pool(
    x: TensorLike,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def lrn(
    x: TensorLike, *, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0, size: int, name: str | None = None
) -> Tensor: ...
def lstm(
    x: TensorLike,
    w: TensorLike,
    r: TensorLike,
    b: TensorLike | None = None,
    sequence_lens: TensorLike | None = None,
    initial_h: TensorLike | None = None,
    initial_c: TensorLike | None = None,
    p: TensorLike | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    output_sequence: int = 0,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
def mat_mul(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def mat_mul_integer(
    a: TensorLike,
    b: TensorLike,
    a_zero_point: TensorLike | None = None,
    b_zero_point: TensorLike | None = None,
    *,
    name: str | None = None,
) -> Tensor: ...
def max(*candidates: TensorLike, name: str | None = None) -> Tensor: ...
@overload
def max_pool(
    x: TensorLike,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def max_pool(
    x: TensorLike,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def max_roi_pool(
    x: TensorLike, rois: TensorLike, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0, name: str | None = None
) -> Tensor: ...
def max_unpool(
    x: TensorLike,
    indices: TensorLike,
    output_shape: TensorLike | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def mean(*terms: TensorLike, name: str | None = None) -> Tensor: ...
def mean_variance_normalization(
    x: TensorLike, *, axes: Sequence[int] = (0, 2, 3), name: str | None = None
) -> Tensor: ...
def mel_weight_matrix(
    num_mel_bins: TensorLike,
    dft_length: TensorLike,
    sample_rate: TensorLike,
    lower_edge_hertz: TensorLike,
    upper_edge_hertz: TensorLike,
    *,
    output_datatype: DTypeLike = 1,
    name: str | None = None,
) -> Tensor: ...
def min(*candidates: TensorLike, name: str | None = None) -> Tensor: ...
def mish(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def mod(a: TensorLike, b: TensorLike, *, fmod: int = 0, name: str | None = None) -> Tensor: ...
def mul(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def multinomial(
    logits: TensorLike,
    *,
    dtype: DTypeLike = 6,
    sample_size: int = 1,
    seed: float | None = None,
    name: str | None = None,
) -> Tensor: ...
def neg(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def negative_log_likelihood_loss(
    x: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    name: str | None = None,
) -> Tensor: ...
def non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_boxes_per_class: TensorLike | None = None,
    iou_threshold: TensorLike | None = None,
    score_threshold: TensorLike | None = None,
    *,
    center_point_box: int = 0,
    name: str | None = None,
) -> Tensor: ...
def non_zero(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def not_(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def one_hot(
    indices: TensorLike, depth: TensorLike, values: TensorLike, *, axis: int = -1, name: str | None = None
) -> Tensor: ...
def optional(x: TensorLike | None = None, *, type: Type | None = None, name: str | None = None) -> Tensor: ...
def optional_get_element(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def optional_has_element(x: TensorLike | None = None, *, name: str | None = None) -> Tensor: ...
def or_(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def pad(
    x: TensorLike,
    pads: TensorLike,
    constant_value: TensorLike | None = None,
    axes: TensorLike | None = None,
    *,
    mode: str = "constant",
    name: str | None = None,
) -> Tensor: ...
def pow(base: TensorLike, exponent: TensorLike, *, name: str | None = None) -> Tensor: ...
def prelu(x: TensorLike, slope: TensorLike, *, name: str | None = None) -> Tensor: ...
def q_linear_conv(
    x: TensorLike,
    x_scale: TensorLike,
    x_zero_point: TensorLike,
    w: TensorLike,
    w_scale: TensorLike,
    w_zero_point: TensorLike,
    y_scale: TensorLike,
    y_zero_point: TensorLike,
    bias: TensorLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def q_linear_mat_mul(
    a: TensorLike,
    a_scale: TensorLike,
    a_zero_point: TensorLike,
    b: TensorLike,
    b_scale: TensorLike,
    b_zero_point: TensorLike,
    y_scale: TensorLike,
    y_zero_point: TensorLike,
    *,
    name: str | None = None,
) -> Tensor: ...
def quantize_linear(
    x: TensorLike,
    scale: TensorLike,
    zero_point: TensorLike | None = None,
    *,
    axis: int = 1,
    saturate: int = 1,
    block_size: int = 0,
    output_dtype: DTypeLike = 0,
    precision: DTypeLike = 0,
    name: str | None = None,
) -> Tensor: ...
def random_normal(
    *,
    shape: Sequence[int],
    dtype: DTypeLike = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    name: str | None = None,
) -> Tensor: ...
def random_normal_like(
    like: TensorLike,
    *,
    dtype: DTypeLike | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    name: str | None = None,
) -> Tensor: ...
def random_uniform(
    *,
    shape: Sequence[int],
    dtype: DTypeLike = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    name: str | None = None,
) -> Tensor: ...
def random_uniform_like(
    like: TensorLike,
    *,
    dtype: DTypeLike | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    name: str | None = None,
) -> Tensor: ...
def range(
    start: TensorLike, limit: TensorLike, delta: TensorLike, *, stash_type: DTypeLike = 1, name: str | None = None
) -> Tensor: ...
def reciprocal(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def reduce_l1(
    x: TensorLike,
    axes: TensorLike | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    name: str | None = None,
) -> Tensor: ...
def reduce_l2(
    x: TensorLike,
    axes: TensorLike | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    name: str | None = None,
) -> Tensor: ...
def reduce_log_sum(
    x: TensorLike,
    axes: TensorLike | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    name: str | None = None,
) -> Tensor: ...
def reduce_log_sum_exp(
    x: TensorLike,
    axes: TensorLike | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    name: str | None = None,
) -> Tensor: ...
def reduce_max(
    x: TensorLike,
    axes: TensorLike | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    name: str | None = None,
) -> Tensor: ...
def reduce_mean(
    x: TensorLike,
    axes: TensorLike | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    name: str | None = None,
) -> Tensor: ...
def reduce_min(
    x: TensorLike,
    axes: TensorLike | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    name: str | None = None,
) -> Tensor: ...
def reduce_prod(
    x: TensorLike,
    axes: TensorLike | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    name: str | None = None,
) -> Tensor: ...
def reduce_sum(
    x: TensorLike,
    axes: TensorLike | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    name: str | None = None,
) -> Tensor: ...
def reduce_sum_square(
    x: TensorLike,
    axes: TensorLike | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    name: str | None = None,
) -> Tensor: ...
def regex_full_match(x: TensorLike, *, pattern: str = "", name: str | None = None) -> Tensor: ...
def relu(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def reshape(x: TensorLike, shape: TensorLike, *, allowzero: int = 0, name: str | None = None) -> Tensor: ...
def resize(
    x: TensorLike,
    roi: TensorLike | None = None,
    scales: TensorLike | None = None,
    sizes: TensorLike | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    name: str | None = None,
) -> Tensor: ...
def reverse_sequence(
    x: TensorLike, sequence_lens: TensorLike, *, batch_axis: int = 1, time_axis: int = 0, name: str | None = None
) -> Tensor: ...
def rms_normalization(
    x: TensorLike,
    scale: TensorLike,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: DTypeLike = 1,
    name: str | None = None,
) -> Tensor: ...
def rnn(
    x: TensorLike,
    w: TensorLike,
    r: TensorLike,
    b: TensorLike | None = None,
    sequence_lens: TensorLike | None = None,
    initial_h: TensorLike | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output_sequence: int = 0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def roi_align(
    x: TensorLike,
    rois: TensorLike,
    batch_indices: TensorLike,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    name: str | None = None,
) -> Tensor: ...
def rotary_embedding(
    x: TensorLike,
    cos_cache: TensorLike,
    sin_cache: TensorLike,
    position_ids: TensorLike | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
    name: str | None = None,
) -> Tensor: ...
def round(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def scan(
    states: Sequence[TensorLike],
    sequences: Sequence[TensorLike],
    body: Callable[..., TensorLike],
    *,
    axes: Sequence[int] | None = None,
    reverse: Sequence[bool] | None = None,
    name: str | None = None,
) -> tuple[Tensor, ...]: ...
def scatter(
    x: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    *,
    axis: int = 0,
    reduction: str = "none",
    name: str | None = None,
) -> Tensor: ...
def scatter_elements(
    x: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    *,
    axis: int = 0,
    reduction: str = "none",
    name: str | None = None,
) -> Tensor: ...
def scatter_nd(
    x: TensorLike, indices: TensorLike, updates: TensorLike, *, reduction: str = "none", name: str | None = None
) -> Tensor: ...
def selu(
    x: TensorLike, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323, name: str | None = None
) -> Tensor: ...
def sequence_at(sequence: TensorLike, position: TensorLike, *, name: str | None = None) -> Tensor: ...
def sequence_construct(*inputs: TensorLike, name: str | None = None) -> Tensor: ...
def sequence_empty(*, dtype: DTypeLike = 1, name: str | None = None) -> Tensor: ...
def sequence_erase(sequence: TensorLike, position: TensorLike | None = None, *, name: str | None = None) -> Tensor: ...
def sequence_insert(
    sequence: TensorLike, element: TensorLike, position: TensorLike | None = None, *, name: str | None = None
) -> Tensor: ...
def sequence_length(sequence: TensorLike, *, name: str | None = None) -> Tensor: ...
def sequence_map(
    sequence: Tensor, *others: TensorLike, body: Callable[..., TensorLike], name: str | None = None
) -> tuple[Tensor, ...]: ...
def shape(x: TensorLike, *, start: int = 0, end: int | None = None, name: str | None = None) -> Tensor: ...
def shrink(x: TensorLike, *, bias: float = 0.0, lambd: float = 0.5, name: str | None = None) -> Tensor: ...
def sigmoid(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def sign(x: TensorLike, *, name: str | None = None) -> Tensor: ...
@overload
def simplified_layer_normalization(
    x: TensorLike,
    scale: TensorLike,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: DTypeLike = 1,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def simplified_layer_normalization(
    x: TensorLike,
    scale: TensorLike,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: DTypeLike = 1,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def sin(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def sinh(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def size(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def slice(
    x: TensorLike,
    starts: TensorLike,
    ends: TensorLike,
    axes: TensorLike | None = None,
    steps: TensorLike | None = None,
    *,
    name: str | None = None,
) -> Tensor: ...
def softmax(x: TensorLike, *, axis: int = -1, name: str | None = None) -> Tensor: ...
@overload
def softmax_cross_entropy_loss(
    scores: TensorLike,
    labels: TensorLike,
    weights: TensorLike | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def softmax_cross_entropy_loss(
    scores: TensorLike,
    labels: TensorLike,
    weights: TensorLike | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def softplus(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def softsign(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def space_to_depth(x: TensorLike, *, blocksize: int, mode: str = "DCR", name: str | None = None) -> Tensor: ...
def split(
    x: TensorLike,
    split: TensorLike | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    name: str | None = None,
) -> tuple[Tensor, ...]: ...
def split_to_sequence(
    x: TensorLike, split: TensorLike | None = None, *, axis: int = 0, keepdims: int = 1, name: str | None = None
) -> Tensor: ...
def sqrt(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def squeeze(x: TensorLike, axes: TensorLike | None = None, *, name: str | None = None) -> Tensor: ...
def stft(
    signal: TensorLike,
    frame_step: TensorLike,
    window: TensorLike | None = None,
    frame_length: TensorLike | None = None,
    *,
    onesided: int = 1,
    name: str | None = None,
) -> Tensor: ...
def string_concat(x: TensorLike, y: TensorLike, *, name: str | None = None) -> Tensor: ...
def string_normalizer(
    x: TensorLike,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
    name: str | None = None,
) -> Tensor: ...
def string_split(
    x: TensorLike, *, delimiter: str = "", maxsplit: int = -1, name: str | None = None
) -> tuple[Tensor, Tensor]: ...
def sub(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def sum(*terms: TensorLike, name: str | None = None) -> Tensor: ...
def swiglu(gate: TensorLike, linear: TensorLike, *, alpha: float = 1.0, name: str | None = None) -> Tensor: ...
def swish(x: TensorLike, *, alpha: float = 1.0, name: str | None = None) -> Tensor: ...
def tan(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def tanh(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def tensor_scatter(
    past_cache: TensorLike,
    update: TensorLike,
    write_indices: TensorLike | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
    name: str | None = None,
) -> Tensor: ...
def tf_idf_vectorizer(
    x: TensorLike,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
    name: str | None = None,
) -> Tensor: ...
def thresholded_relu(x: TensorLike, *, alpha: float = 1.0, name: str | None = None) -> Tensor: ...
def tile(x: TensorLike, repeats: TensorLike, *, name: str | None = None) -> Tensor: ...
def top_k(
    x: TensorLike, k: TensorLike, *, axis: int = -1, largest: int = 1, sorted: int = 1, name: str | None = None
) -> tuple[Tensor, Tensor]: ...
def transpose(x: TensorLike, *, perm: Sequence[int] | None = None, name: str | None = None) -> Tensor: ...
def trilu(x: TensorLike, k: TensorLike | None = None, *, upper: int = 1, name: str | None = None) -> Tensor: ...
@overload
def unique(
    x: TensorLike, *, axis: int | None = None, sorted: int = 1, outputs: Literal[1] = 1, name: str | None = None
) -> Tensor: ...
@overload
def unique(
    x: TensorLike, *, axis: int | None = None, sorted: int = 1, outputs: Literal[2], name: str | None = None
) -> tuple[Tensor, Tensor]: ...
@overload
def unique(
    x: TensorLike, *, axis: int | None = None, sorted: int = 1, outputs: Literal[3], name: str | None = None
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def unique(
    x: TensorLike, *, axis: int | None = None, sorted: int = 1, outputs: Literal[4], name: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def unsqueeze(x: TensorLike, axes: TensorLike, *, name: str | None = None) -> Tensor: ...
def upsample(x: TensorLike, scales: TensorLike, *, mode: str = "nearest", name: str | None = None) -> Tensor: ...
def where(condition: TensorLike, a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def xor(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
