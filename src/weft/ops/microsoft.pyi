"""Generated from the definitions of the ops: see tests/builder/test_stubs.py"""

from collections.abc import Sequence
from typing import Literal, overload

from weft.builder.tensor import Tensor, TensorLike

@overload
def attention(
    x: TensorLike,
    weights: TensorLike,
    bias: TensorLike | None = None,
    mask_index: TensorLike | None = None,
    past: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    past_sequence_length: TensorLike | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def attention(
    x: TensorLike,
    weights: TensorLike,
    bias: TensorLike | None = None,
    mask_index: TensorLike | None = None,
    past: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    past_sequence_length: TensorLike | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def bias_add(x: TensorLike, bias: TensorLike, skip: TensorLike, *, name: str | None = None) -> Tensor: ...
@overload
def bias_dropout(
    x: TensorLike,
    bias: TensorLike,
    residual: TensorLike | None = None,
    ratio: TensorLike | None = None,
    training_mode: TensorLike | None = None,
    *,
    seed: int | None = None,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def bias_dropout(
    x: TensorLike,
    bias: TensorLike,
    residual: TensorLike | None = None,
    ratio: TensorLike | None = None,
    training_mode: TensorLike | None = None,
    *,
    seed: int | None = None,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def bias_gelu(x: TensorLike, bias: TensorLike, *, name: str | None = None) -> Tensor: ...
def bias_softmax(
    x: TensorLike, bias: TensorLike, *, axis: int = 1, is_inner_broadcast: int, name: str | None = None
) -> Tensor: ...
def bias_split_gelu(x: TensorLike, bias: TensorLike, *, name: str | None = None) -> Tensor: ...
def c_dist(a: TensorLike, b: TensorLike, *, metric: str = "sqeuclidean", name: str | None = None) -> Tensor: ...
def causal_conv_with_state(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    past_state: TensorLike | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    ndim: int = 1,
    state_window: int = 0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def complex_mul(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def complex_mul_conj(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def conv_transpose_with_dynamic_pads(
    x: TensorLike,
    w: TensorLike,
    pads: TensorLike | None = None,
    b: TensorLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def crop_and_resize(
    x: TensorLike,
    rois: TensorLike,
    batch_indices: TensorLike,
    crop_size: TensorLike,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
    name: str | None = None,
) -> Tensor: ...
@overload
def decoder_masked_multi_head_attention(
    query: TensorLike,
    key: TensorLike | None = None,
    value: TensorLike | None = None,
    mask_index: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    past_sequence_length: TensorLike | None = None,
    beam_width: TensorLike | None = None,
    cache_indirection: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def decoder_masked_multi_head_attention(
    query: TensorLike,
    key: TensorLike | None = None,
    value: TensorLike | None = None,
    mask_index: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    past_sequence_length: TensorLike | None = None,
    beam_width: TensorLike | None = None,
    cache_indirection: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def decoder_masked_multi_head_attention(
    query: TensorLike,
    key: TensorLike | None = None,
    value: TensorLike | None = None,
    mask_index: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    past_sequence_length: TensorLike | None = None,
    beam_width: TensorLike | None = None,
    cache_indirection: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    outputs: Literal[3],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def decoder_masked_multi_head_attention(
    query: TensorLike,
    key: TensorLike | None = None,
    value: TensorLike | None = None,
    mask_index: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    past_sequence_length: TensorLike | None = None,
    beam_width: TensorLike | None = None,
    cache_indirection: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    outputs: Literal[4],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def dequantize_linear(
    x: TensorLike, scale: TensorLike, zero_point: TensorLike | None = None, *, axis: int = 1, name: str | None = None
) -> Tensor: ...
def dynamic_quantize_lstm(
    x: TensorLike,
    w: TensorLike,
    r: TensorLike,
    b: TensorLike | None,
    sequence_lens: TensorLike | None,
    initial_h: TensorLike | None,
    initial_c: TensorLike | None,
    p: TensorLike | None,
    w_scale: TensorLike,
    w_zero_point: TensorLike,
    r_scale: TensorLike,
    r_zero_point: TensorLike,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
def dynamic_quantize_mat_mul(
    a: TensorLike,
    b: TensorLike,
    b_scale: TensorLike,
    b_zero_point: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def embed_layer_normalization(
    input_ids: TensorLike,
    segment_ids: TensorLike | None,
    word_embedding: TensorLike,
    position_embedding: TensorLike,
    segment_embedding: TensorLike | None,
    gamma: TensorLike,
    beta: TensorLike,
    mask: TensorLike | None = None,
    position_ids: TensorLike | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int | None = None,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def embed_layer_normalization(
    input_ids: TensorLike,
    segment_ids: TensorLike | None,
    word_embedding: TensorLike,
    position_embedding: TensorLike,
    segment_embedding: TensorLike | None,
    gamma: TensorLike,
    beta: TensorLike,
    mask: TensorLike | None = None,
    position_ids: TensorLike | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int | None = None,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def embed_layer_normalization(
    input_ids: TensorLike,
    segment_ids: TensorLike | None,
    word_embedding: TensorLike,
    position_embedding: TensorLike,
    segment_embedding: TensorLike | None,
    gamma: TensorLike,
    beta: TensorLike,
    mask: TensorLike | None = None,
    position_ids: TensorLike | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int | None = None,
    outputs: Literal[3],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
def expand_dims(x: TensorLike, axis: TensorLike, *, name: str | None = None) -> Tensor: ...
def fast_gelu(x: TensorLike, bias: TensorLike | None = None, *, name: str | None = None) -> Tensor: ...
def fused_conv(
    x: TensorLike,
    w: TensorLike,
    b: TensorLike | None = None,
    z: TensorLike | None = None,
    *,
    activation: str | None = None,
    activation_params: Sequence[float] = (),
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def fused_gemm(
    a: TensorLike,
    b: TensorLike,
    c: TensorLike | None = None,
    *,
    activation: str | None = None,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    name: str | None = None,
) -> Tensor: ...
def fused_mat_mul(
    a: TensorLike,
    b: TensorLike,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
    name: str | None = None,
) -> Tensor: ...
def fused_mat_mul_activation(
    a: TensorLike,
    b: TensorLike,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    activation_axis: int | None = None,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
    name: str | None = None,
) -> Tensor: ...
def gated_relative_position_bias(
    query_layer: TensorLike,
    query_bias: TensorLike,
    rel_pos: TensorLike,
    weight: TensorLike,
    bias: TensorLike,
    eco_a: TensorLike,
    token_offset: TensorLike | None = None,
    *,
    num_heads: int,
    name: str | None = None,
) -> Tensor: ...
def gather_block_quantized(
    data: TensorLike,
    indices: TensorLike,
    scales: TensorLike,
    zero_points: TensorLike | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
    name: str | None = None,
) -> Tensor: ...
def gather_nd(x: TensorLike, indices: TensorLike, *, name: str | None = None) -> Tensor: ...
def gelu(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def gemm_fast_gelu(
    x: TensorLike, w: TensorLike, bias: TensorLike | None = None, *, name: str | None = None
) -> Tensor: ...
def gemma_rotary_embedding(
    angles: TensorLike,
    q: TensorLike,
    q_rotated: TensorLike,
    k: TensorLike,
    k_rotated: TensorLike,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def grid_sample(
    x: TensorLike,
    grid: TensorLike,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    name: str | None = None,
) -> Tensor: ...
def group_norm(
    x: TensorLike,
    gamma: TensorLike,
    beta: TensorLike,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-05,
    groups: int,
    name: str | None = None,
) -> Tensor: ...
@overload
def group_query_attention(
    query: TensorLike,
    key: TensorLike | None,
    value: TensorLike | None,
    past_key: TensorLike | None,
    past_value: TensorLike | None,
    seqlens_k: TensorLike,
    total_sequence_length: TensorLike,
    cos_cache: TensorLike | None = None,
    sin_cache: TensorLike | None = None,
    position_ids: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    head_sink: TensorLike | None = None,
    k_scale: TensorLike | None = None,
    v_scale: TensorLike | None = None,
    q_norm_weight: TensorLike | None = None,
    k_norm_weight: TensorLike | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_norm_epsilon: float = 1e-06,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
    outputs: Literal[3] = 3,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def group_query_attention(
    query: TensorLike,
    key: TensorLike | None,
    value: TensorLike | None,
    past_key: TensorLike | None,
    past_value: TensorLike | None,
    seqlens_k: TensorLike,
    total_sequence_length: TensorLike,
    cos_cache: TensorLike | None = None,
    sin_cache: TensorLike | None = None,
    position_ids: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    head_sink: TensorLike | None = None,
    k_scale: TensorLike | None = None,
    v_scale: TensorLike | None = None,
    q_norm_weight: TensorLike | None = None,
    k_norm_weight: TensorLike | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_norm_epsilon: float = 1e-06,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
    outputs: Literal[4],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def inverse(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def irfft(
    x: TensorLike, *, normalized: int = 0, onesided: int = 1, signal_ndim: int, name: str | None = None
) -> Tensor: ...
def is_all_finite(*inputs: TensorLike, isinf_only: int = 0, isnan_only: int = 0, name: str | None = None) -> Tensor: ...
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
    state_window: int = 0,
    update_rule: str = "gated_delta",
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def m_rotary_embedding(
    x: TensorLike,
    position_ids: TensorLike,
    cos_cache: TensorLike,
    sin_cache: TensorLike,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: Sequence[int],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    name: str | None = None,
) -> Tensor: ...
def mat_mul_bnb4(
    a: TensorLike,
    b: TensorLike,
    absmax: TensorLike,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
    name: str | None = None,
) -> Tensor: ...
def mat_mul_integer16(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def mat_mul_integer_to_float(
    a: TensorLike,
    b: TensorLike,
    a_scale: TensorLike,
    b_scale: TensorLike,
    a_zero_point: TensorLike | None = None,
    b_zero_point: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    name: str | None = None,
) -> Tensor: ...
def mat_mul_n_bits(
    a: TensorLike,
    b: TensorLike,
    scales: TensorLike,
    zero_points: TensorLike | None = None,
    g_idx: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
    name: str | None = None,
) -> Tensor: ...
def maxpool_with_mask(
    x: TensorLike,
    mask: TensorLike,
    *,
    auto_pad: str = "NOTSET",
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def moe(
    x: TensorLike,
    router_probs: TensorLike,
    fc1_weights: TensorLike,
    fc1_bias: TensorLike | None,
    fc2_weights: TensorLike,
    fc2_bias: TensorLike | None = None,
    fc3_weights: TensorLike | None = None,
    fc3_bias: TensorLike | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    use_sparse_mixer: int = 0,
    name: str | None = None,
) -> Tensor: ...
def mul_integer(
    a: TensorLike,
    a_zero_point: TensorLike | None,
    b: TensorLike,
    b_zero_point: TensorLike | None = None,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def multi_head_attention(
    query: TensorLike,
    key: TensorLike | None = None,
    value: TensorLike | None = None,
    bias: TensorLike | None = None,
    key_padding_mask: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    past_sequence_length: TensorLike | None = None,
    cache_indirection: TensorLike | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def multi_head_attention(
    query: TensorLike,
    key: TensorLike | None = None,
    value: TensorLike | None = None,
    bias: TensorLike | None = None,
    key_padding_mask: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    past_sequence_length: TensorLike | None = None,
    cache_indirection: TensorLike | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def multi_head_attention(
    query: TensorLike,
    key: TensorLike | None = None,
    value: TensorLike | None = None,
    bias: TensorLike | None = None,
    key_padding_mask: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    past_sequence_length: TensorLike | None = None,
    cache_indirection: TensorLike | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
    outputs: Literal[3],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def multi_head_attention(
    query: TensorLike,
    key: TensorLike | None = None,
    value: TensorLike | None = None,
    bias: TensorLike | None = None,
    key_padding_mask: TensorLike | None = None,
    attention_bias: TensorLike | None = None,
    past_key: TensorLike | None = None,
    past_value: TensorLike | None = None,
    past_sequence_length: TensorLike | None = None,
    cache_indirection: TensorLike | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
    outputs: Literal[4],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def murmur_hash3(x: TensorLike, *, positive: int = 1, seed: int = 0, name: str | None = None) -> Tensor: ...
def n_gram_repeat_block(
    input_ids: TensorLike, scores: TensorLike, *, ngram_size: int, name: str | None = None
) -> Tensor: ...
def nhwc_conv(
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
def nhwc_fused_conv(
    x: TensorLike,
    w: TensorLike,
    b: TensorLike | None = None,
    z: TensorLike | None = None,
    *,
    activation: str | None = None,
    activation_params: Sequence[float] = (),
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def nhwc_max_pool(
    x: TensorLike,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def packed_attention(
    x: TensorLike,
    weights: TensorLike,
    bias: TensorLike,
    token_offset: TensorLike,
    cumulative_sequence_length: TensorLike,
    attention_bias: TensorLike | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float | None = None,
    name: str | None = None,
) -> Tensor: ...
def packed_multi_head_attention(
    query: TensorLike,
    key: TensorLike | None,
    value: TensorLike | None,
    bias: TensorLike | None,
    token_offset: TensorLike,
    cumulative_sequence_length: TensorLike,
    attention_bias: TensorLike | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
    name: str | None = None,
) -> Tensor: ...
def pad(
    x: TensorLike, pads: TensorLike, value: TensorLike | None = None, *, mode: str = "constant", name: str | None = None
) -> Tensor: ...
@overload
def q_attention(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike,
    input_scale: TensorLike,
    weight_scale: TensorLike,
    mask_index: TensorLike | None = None,
    input_zero_point: TensorLike | None = None,
    weight_zero_point: TensorLike | None = None,
    past: TensorLike | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def q_attention(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike,
    input_scale: TensorLike,
    weight_scale: TensorLike,
    mask_index: TensorLike | None = None,
    input_zero_point: TensorLike | None = None,
    weight_zero_point: TensorLike | None = None,
    past: TensorLike | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def q_embed_layer_normalization(
    input_ids: TensorLike,
    segment_ids: TensorLike | None,
    word_embedding: TensorLike,
    position_embedding: TensorLike,
    segment_embedding: TensorLike | None,
    gamma: TensorLike,
    beta: TensorLike,
    mask: TensorLike | None,
    word_scale: TensorLike,
    position_scale: TensorLike,
    segment_scale: TensorLike | None,
    gamma_scale: TensorLike,
    beta_scale: TensorLike,
    word_zero_point: TensorLike,
    position_zero_point: TensorLike,
    segment_zero_point: TensorLike | None,
    gamma_zero_point: TensorLike,
    beta_zero_point: TensorLike,
    *,
    epsilon: float = 1e-12,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def q_gemm(
    a: TensorLike,
    a_scale: TensorLike,
    a_zero_point: TensorLike,
    b: TensorLike,
    b_scale: TensorLike,
    b_zero_point: TensorLike,
    c: TensorLike | None = None,
    y_scale: TensorLike | None = None,
    y_zero_point: TensorLike | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    name: str | None = None,
) -> Tensor: ...
def q_linear_add(
    a: TensorLike,
    a_scale: TensorLike,
    a_zero_point: TensorLike | None,
    b: TensorLike,
    b_scale: TensorLike,
    b_zero_point: TensorLike | None,
    c_scale: TensorLike,
    c_zero_point: TensorLike | None = None,
    *,
    name: str | None = None,
) -> Tensor: ...
def q_linear_average_pool(
    x: TensorLike,
    x_scale: TensorLike,
    x_zero_point: TensorLike | None,
    y_scale: TensorLike,
    y_zero_point: TensorLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def q_linear_concat(
    y_scale: TensorLike, y_zero_point: TensorLike, *inputs: TensorLike, axis: int, name: str | None = None
) -> Tensor: ...
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
    channels_last: int = 0,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor: ...
def q_linear_global_average_pool(
    x: TensorLike,
    x_scale: TensorLike,
    x_zero_point: TensorLike | None,
    y_scale: TensorLike,
    y_zero_point: TensorLike | None = None,
    *,
    channels_last: int = 0,
    name: str | None = None,
) -> Tensor: ...
def q_linear_leaky_relu(
    x: TensorLike,
    x_scale: TensorLike,
    x_zero_point: TensorLike | None,
    y_scale: TensorLike,
    y_zero_point: TensorLike | None = None,
    *,
    alpha: float = 0.01,
    name: str | None = None,
) -> Tensor: ...
def q_linear_mul(
    a: TensorLike,
    a_scale: TensorLike,
    a_zero_point: TensorLike | None,
    b: TensorLike,
    b_scale: TensorLike,
    b_zero_point: TensorLike | None,
    c_scale: TensorLike,
    c_zero_point: TensorLike | None = None,
    *,
    name: str | None = None,
) -> Tensor: ...
def q_linear_reduce_mean(
    x: TensorLike,
    x_scale: TensorLike,
    x_zero_point: TensorLike | None,
    y_scale: TensorLike,
    y_zero_point: TensorLike | None = None,
    *,
    axes: Sequence[int] | None = None,
    keepdims: int = 1,
    name: str | None = None,
) -> Tensor: ...
def q_linear_sigmoid(
    x: TensorLike,
    x_scale: TensorLike,
    x_zero_point: TensorLike | None,
    y_scale: TensorLike,
    y_zero_point: TensorLike | None = None,
    *,
    name: str | None = None,
) -> Tensor: ...
def q_linear_softmax(
    x: TensorLike,
    x_scale: TensorLike,
    x_zero_point: TensorLike | None,
    y_scale: TensorLike,
    y_zero_point: TensorLike | None = None,
    *,
    axis: int = -1,
    opset: int,
    name: str | None = None,
) -> Tensor: ...
def q_linear_where(
    condition: TensorLike,
    x: TensorLike,
    x_scale: TensorLike,
    x_zero_point: TensorLike,
    y: TensorLike,
    y_scale: TensorLike,
    y_zero_point: TensorLike,
    z_scale: TensorLike,
    z_zero_point: TensorLike,
    *,
    name: str | None = None,
) -> Tensor: ...
def q_moe(
    x: TensorLike,
    router_probs: TensorLike,
    fc1_weights: TensorLike,
    fc1_scales: TensorLike | None,
    fc1_bias: TensorLike | None,
    fc2_weights: TensorLike,
    fc2_scales: TensorLike | None,
    fc2_bias: TensorLike | None = None,
    fc3_weights: TensorLike | None = None,
    fc3_scales: TensorLike | None = None,
    fc3_bias: TensorLike | None = None,
    fc1_zero_points: TensorLike | None = None,
    fc2_zero_points: TensorLike | None = None,
    fc3_zero_points: TensorLike | None = None,
    router_weights: TensorLike | None = None,
    *unused: TensorLike,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    block_size: int = 0,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None,
    fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None,
    k: int = 1,
    normalize_routing_weights: int = 0,
    quant_type: str = "int",
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    use_sparse_mixer: int = 0,
    weights_prepacked: int = -1,
    name: str | None = None,
) -> Tensor: ...
def quantize_linear(
    x: TensorLike, scale: TensorLike, zero_point: TensorLike | None = None, *, axis: int = 1, name: str | None = None
) -> Tensor: ...
def quick_gelu(x: TensorLike, *, alpha: float = 1.702, name: str | None = None) -> Tensor: ...
def range(
    start: TensorLike, limit: TensorLike, delta: TensorLike | None = None, *, name: str | None = None
) -> Tensor: ...
def reduce_sum_integer(
    x: TensorLike, *, axes: Sequence[int] | None = None, keepdims: int = 1, name: str | None = None
) -> Tensor: ...
def relative_position_bias(
    bias_table: TensorLike,
    query_length: TensorLike,
    key_length: TensorLike,
    *,
    is_bidirectional: int = 0,
    max_distance: int,
    name: str | None = None,
) -> Tensor: ...
def remove_padding(
    x: TensorLike, sequence_token_count: TensorLike, *, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def restore_padding(x: TensorLike, token_offset: TensorLike, *, name: str | None = None) -> Tensor: ...
def rfft(
    x: TensorLike, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1, name: str | None = None
) -> Tensor: ...
def rotary_embedding(
    x: TensorLike,
    position_ids: TensorLike,
    cos_cache: TensorLike,
    sin_cache: TensorLike,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    name: str | None = None,
) -> Tensor: ...
@overload
def skip_group_norm(
    x: TensorLike,
    gamma: TensorLike,
    beta: TensorLike,
    skip: TensorLike,
    bias: TensorLike | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-05,
    groups: int,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def skip_group_norm(
    x: TensorLike,
    gamma: TensorLike,
    beta: TensorLike,
    skip: TensorLike,
    bias: TensorLike | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-05,
    groups: int,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def skip_layer_normalization(
    x: TensorLike,
    skip: TensorLike,
    gamma: TensorLike,
    beta: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def skip_layer_normalization(
    x: TensorLike,
    skip: TensorLike,
    gamma: TensorLike,
    beta: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def skip_layer_normalization(
    x: TensorLike,
    skip: TensorLike,
    gamma: TensorLike,
    beta: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: Literal[3],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def skip_layer_normalization(
    x: TensorLike,
    skip: TensorLike,
    gamma: TensorLike,
    beta: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: Literal[4],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def skip_simplified_layer_normalization(
    x: TensorLike,
    skip: TensorLike,
    gamma: TensorLike,
    bias: TensorLike | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: Literal[1] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def skip_simplified_layer_normalization(
    x: TensorLike,
    skip: TensorLike,
    gamma: TensorLike,
    bias: TensorLike | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: Literal[2],
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def skip_simplified_layer_normalization(
    x: TensorLike,
    skip: TensorLike,
    gamma: TensorLike,
    bias: TensorLike | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: Literal[3],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def skip_simplified_layer_normalization(
    x: TensorLike,
    skip: TensorLike,
    gamma: TensorLike,
    bias: TensorLike | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: Literal[4],
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def solve(a: TensorLike, y: TensorLike, *, lower: int = 0, transposed: int = 0, name: str | None = None) -> Tensor: ...
def tokenizer(
    x: TensorLike,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] = (),
    tokenexp: str = "",
    name: str | None = None,
) -> Tensor: ...
def torch_embedding(
    weight: TensorLike,
    indices: TensorLike,
    padding_idx: TensorLike | None = None,
    scale_grad_by_freq: TensorLike | None = None,
    *,
    name: str | None = None,
) -> Tensor: ...
def transpose_mat_mul(
    a: TensorLike,
    b: TensorLike,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
    name: str | None = None,
) -> Tensor: ...
def trilu(x: TensorLike, k: TensorLike | None = None, *, upper: int = 1, name: str | None = None) -> Tensor: ...
def unfold_tensor(x: TensorLike, *, dim: int = -1, size: int, step: int = 1, name: str | None = None) -> Tensor: ...
def unique(x: TensorLike, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]: ...
def word_conv_embedding(
    sequence: TensorLike,
    weights: TensorLike,
    bias: TensorLike,
    characters: TensorLike,
    *,
    char_embedding_size: int | None = None,
    conv_window_size: int | None = None,
    embedding_size: int | None = None,
    name: str | None = None,
) -> Tensor: ...
