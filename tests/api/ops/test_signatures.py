"""Names, orders and defaults of arguments, as users of the IPU API write them."""

import inspect
import re

import pytest
import tensorflow as tf

from ipu_keras.keras import layers, optimizers
from ipu_keras.ops import (
    control_flow_ops,
    embedding_ops,
    f8_ops,
    functional_ops,
    grad_util_ops,
    image_ops,
    math_ops,
    nn_ops,
    rand_ops,
    slicing_ops,
    statistics_ops,
)

# Written as in a reference manual; a name without "=" has no default.
SIGNATURES = [
    (nn_ops, "gelu(x, approximate=True, name=None)"),
    (nn_ops, "softmax(x, stable=False, name=None)"),
    (nn_ops, "hard_sigmoid(x, name=None)"),
    (nn_ops, "swish(x, name=None)"),
    (nn_ops, "multi_conv(func=None, options=None)"),
    (nn_ops, "sampled_softmax_loss(weights, biases, labels, inputs, num_sampled, num_classes, num_true=1)"),
    (nn_ops, "nce_loss(weights, biases, labels, inputs, num_sampled, num_classes, num_true=1, sampled_values=None)"),
    (nn_ops, "ctc_loss_v2(labels, logits, label_length, logit_length, blank_index, out_dtype=None, name=None)"),
    (
        nn_ops,
        "ctc_loss_with_log_probs(labels, data, label_length, data_length, blank_index, out_dtype=None, name=None)",
    ),
    (embedding_ops, "embedding_lookup(params, ids, serialization_factor=1, indices_are_sorted=False, name=None)"),
    (rand_ops, "dropout(x, rate=0.5, noise_shape=None, seed=None, name=None, ref=True)"),
    (functional_ops, "outlined_function(func=None, unique_sharding=False, keep_input_layouts=None, name=None)"),
    (control_flow_ops, "barrier(tensors, insert_barrier_for_gradients=False, name=None)"),
    (image_ops, "normalise_image(image, channel_offsets, channel_scales, scale=1, name=None)"),
    (
        math_ops,
        "serialized_matmul(a, b, serialization_factor, serialization_dimension, transpose_a=False, transpose_b=False)",
    ),
    (math_ops, "segment_sum(data, segment_ids, num_segments, name=None)"),
    (slicing_ops, "sequence_slice(dst, src, num_elems, src_offsets, dst_offsets, zero_unused)"),
    (slicing_ops, "sequence_slice_unpack(src, num_elems, src_offsets, total_elements)"),
    (slicing_ops, "sequence_slice_pack(dst, src, num_elems, dst_offsets, zero_unused)"),
    (statistics_ops, "histogram(inputs, levels, absolute_of_input=False)"),
    (statistics_ops, "histogram_update(hist, inputs, levels, absolute_of_input=False)"),
    (statistics_ops, "fixed_width_bins(inputs, n_bins)"),
    (statistics_ops, "histogram_normalize(hist)"),
    (grad_util_ops, "capture_upstream_gradients(args, tag='')"),
    (f8_ops, "create_metadata(fmt, scale=0)"),
    (f8_ops, "QuarterTensor(data, metadata)"),
    (f8_ops, "convert_to_f8(values, metadata, name=None)"),
    (f8_ops, f"convert_from_f8(packed_input, dtype={tf.float16!r}, name=None)"),
    (f8_ops, "f8_matmul(lhs, rhs, name='f8_matmul')"),
    (f8_ops, "f8_conv_1d(inputs, filters, strides, padding, data_format='NWC')"),
    (f8_ops, "f8_conv_2d(inputs, filters, strides, padding, data_format='NHWC')"),
    (f8_ops, "f8_conv_3d(inputs, filters, strides, padding, data_format='NDHWC')"),
    (layers, f"Dense(units, kernel_format={f8_ops.Format.F143!r}, kernel_scale=0, kernel_data_initializer=None)"),
    (layers, "Dropout(rate, noise_shape=None, seed=None)"),
    (
        layers,
        "Embedding(input_dim, output_dim, embeddings_initializer='uniform', embeddings_regularizer=None, "
        "activity_regularizer=None, embeddings_constraint=None, mask_zero=False, input_length=None, "
        "serialization_factor=1)",
    ),
    (
        layers,
        "PopnnLSTM(units, activation='tanh', recurrent_activation='sigmoid', use_bias=True, "
        "kernel_initializer='glorot_uniform', recurrent_initializer='orthogonal', bias_initializer='zeros', "
        "unit_forget_bias=True, kernel_regularizer=None)",
    ),
    (layers, "PopnnGRU(units, activation='tanh', recurrent_activation='sigmoid', use_bias=True)"),
    (
        layers,
        "GroupNormalization(groups=2, channels_axis=-1, center=True, scale=True, epsilon=0.001, beta_initializer=None, "
        "gamma_initializer=None, strided_channel_grouping=True, trainable=True)",
    ),
    (
        layers,
        "InstanceNormalization(channels_axis=-1, center=True, scale=True, epsilon=0.001, beta_initializer=None, "
        "gamma_initializer=None)",
    ),
    (
        layers,
        "LayerNormalization(axis=-1, epsilon=0.001, center=True, scale=True, beta_initializer='zeros', "
        "gamma_initializer='ones', beta_regularizer=None, gamma_regularizer=None, beta_constraint=None, "
        "gamma_constraint=None, trainable=True)",
    ),
    (layers, "SerialDense(units, serialization_factor, serialization_dimension, activation=None, use_bias=True)"),
    (layers, "AssumeEqualAcrossReplicas(inplace=False)"),
    (layers, "CTCLoss(blank_index=0, from_logits=False)"),
    (layers, "CaptureUpstreamGradients(layer, tag=None)"),
    (layers, "CaptureActivationGradients(layer, tag=None)"),
    (optimizers, "SGDIpuOptimizer(learning_rate=0.01, momentum=0.0, nesterov=False)"),
    (optimizers, "AdamIpuOptimizer(learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-07, amsgrad=False)"),
    (
        optimizers,
        "LAMBIpuOptimizer(learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-06, weight_decay_rate=0.0, "
        "exclude_from_weight_decay=None, exclude_from_layer_adaptation=None)",
    ),
    (
        optimizers,
        "ALSOptimizer(opt, initial_loss_scaling_factor=1, update_frequency=8, increase_factor=2, "
        "max_loss_scaling_factor=32768, accumulate_statistics_over_update_period=True, ratio_threshold=1e-05, "
        "captured_grads_only=False, lpf_alpha=0.0, histogram_bin_edge=8192)",
    ),
]


@pytest.mark.parametrize("module, text", SIGNATURES, ids=lambda v: v.split("(")[0] if isinstance(v, str) else "")
def test_signature(module, text):
    name, wanted = re.fullmatch(r"(\w+)\((.*)\)", text).groups()
    parameters = [p for p in inspect.signature(getattr(module, name)).parameters.values() if p.name != "self"]
    found = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    assert found[: wanted.count(", ") + 1] == wanted.split(", ")
    rest = parameters[wanted.count(", ") + 1 :]
    assert all(p.default is not p.empty or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in rest)


def test_keyword_arguments_of_the_optimizers():
    """What is given by name only, after the arguments of the table."""
    wanted = {
        "SGDIpuOptimizer": {"momentum_accum_dtype": None},
        "AdamIpuOptimizer": {"m_dtype": None, "v_dtype": None, "vhat_dtype": None, "debiasing": True},
        "LAMBIpuOptimizer": {"debiasing": True, "m_dtype": None, "v_dtype": None, "weight_norm_clip": None},
        "IpuOptimizerBase": {"outline_apply_gradients": False, "outline_apply_gradients_kwargs": None},
    }
    for name, defaults in wanted.items():
        parameters = inspect.signature(getattr(optimizers, name)).parameters
        assert {key: parameters[key].default for key in defaults} == defaults


def test_aliases():
    for alias, name in (
        ("LSTM", "PopnnLSTM"),
        ("GRU", "PopnnGRU"),
        ("GroupNorm", "GroupNormalization"),
        ("InstanceNorm", "InstanceNormalization"),
        ("LayerNorm", "LayerNormalization"),
    ):
        assert getattr(layers, alias) is getattr(layers, name)
