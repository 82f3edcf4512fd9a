"""The smallest configuration of each model of keras-hub: 2 layers, width 16, 2 heads, 64 tokens, length 8, batch 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np


class NotThere(Exception):
    """This version of keras-hub has no such model."""


class _Models:
    """`keras_hub.models`, imported when something of it is wanted, so that the table can be read without it."""

    def __getattr__(self, name: str) -> Any:
        import keras_hub

        if not hasattr(keras_hub.models, name):
            raise NotThere(f"keras-hub {keras_hub.__version__} has no {name}")
        return getattr(keras_hub.models, name)


km = _Models()

Built = tuple[keras.Model, Any, np.ndarray]

LENGTH, VOCABULARY, WIDTH, BATCH = 8, 64, 16, 4
TEXT = {
    "vocabulary_size": VOCABULARY,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": WIDTH,
    "intermediate_dim": 32,
    "max_sequence_length": LENGTH,
}
DECODER = {
    "vocabulary_size": VOCABULARY,
    "num_layers": 2,
    "num_query_heads": 2,
    "num_key_value_heads": 1,
    "hidden_dim": WIDTH,
    "intermediate_dim": 32,
}


def without(options: dict[str, Any], *names: str, **more: Any) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k not in names} | more


def ids(length: int = LENGTH, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, VOCABULARY, (BATCH, length)).astype(np.int32)


def mask(dtype: Any = np.int32) -> np.ndarray:
    """The last sample is two tokens shorter."""
    result = np.ones((BATCH, LENGTH), dtype)
    result[-1, -2:] = 0
    return result


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(BATCH, *shape)).astype(np.float32)


CLASSES = np.array([0, 1, 2, 0])
SEGMENTS = np.repeat(np.array([[0, 0, 0, 1, 1, 1, 1, 1]], np.int32), BATCH, 0)


# Text to classes


def classifier(name: str, *, segments: bool = False, masked: bool = True, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        backbone = getattr(km, f"{name}Backbone")(**options)
        model = getattr(km, f"{name}TextClassifier")(backbone=backbone, num_classes=3, preprocessor=None)
        return model, text(segments, masked), CLASSES

    return build


def text(segments: bool, masked: bool = True) -> dict[str, np.ndarray]:
    x = {"token_ids": ids()}
    if masked:
        x["padding_mask"] = mask()
    if segments:
        x["segment_ids"] = SEGMENTS
    return x


def bert_masked_lm() -> Built:
    model = km.BertMaskedLM(backbone=km.BertBackbone(**TEXT), preprocessor=None)
    positions = np.repeat(np.array([[1, 4]], np.int32), BATCH, 0)
    return model, text(True) | {"mask_positions": positions}, ids(2, seed=2)


def with_head(backbone: keras.Model, x: Any) -> Built:
    """A backbone without a task class: three classes from its first token."""
    sequence = backbone.output
    sequence = sequence["sequence_output"] if isinstance(sequence, dict) else sequence
    return keras.Model(backbone.input, keras.layers.Dense(3)(sequence[:, 0])), x, CLASSES


def electra() -> Built:
    backbone = km.ElectraBackbone(**without(TEXT, "vocabulary_size", vocab_size=VOCABULARY, embedding_dim=WIDTH))
    return with_head(backbone, text(True))


def xlnet() -> Built:
    backbone = km.XLNetBackbone(**without(TEXT, "max_sequence_length"))
    return with_head(backbone, text(True))


# Causal language models


def causal(name: str, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        backbone = getattr(km, f"{name}Backbone")(**options)
        model = getattr(km, f"{name}CausalLM")(backbone=backbone, preprocessor=None)
        return model, text(False), ids(seed=3)

    return build


# Two sequences


def seq2seq_inputs(dtype: Any = np.int32) -> dict[str, np.ndarray]:
    return {
        "encoder_token_ids": ids(),
        "encoder_padding_mask": mask(dtype),
        "decoder_token_ids": ids(seed=4),
        "decoder_padding_mask": mask(dtype),
    }


def seq2seq(name: str, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        backbone = getattr(km, f"{name}Backbone")(**options)
        model = getattr(km, f"{name}Seq2SeqLM")(backbone=backbone, preprocessor=None)
        return model, seq2seq_inputs(), ids(seed=3)

    return build


def edrec() -> Built:
    options = {"vocab_size": VOCABULARY, "num_layers_enc": 2, "num_layers_dec": 2, "num_heads": 2}
    backbone = km.EdRecBackbone(hidden_dim=WIDTH, intermediate_dim=32, **options)
    return km.EdRecSeq2SeqLM(backbone=backbone, preprocessor=None), seq2seq_inputs(), ids(seed=3)


def t5_backbone() -> Built:
    backbone = km.T5Backbone(**without(TEXT, "max_sequence_length"))
    head = keras.layers.Dense(VOCABULARY)(backbone.output["decoder_sequence_output"])
    return keras.Model(backbone.input, head), seq2seq_inputs(), ids(seed=3)


# Images

IMAGE = (16, 16, 3)


def pictures(name: str, *, image: tuple[int, ...] = IMAGE, head: Any = None, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        backbone = getattr(km, f"{name}Backbone")(image_shape=image, **options)
        model = getattr(km, f"{name}ImageClassifier")(
            backbone=backbone, num_classes=3, preprocessor=None, **(head or {})
        )
        return model, floats(*image), CLASSES

    return build


VIT = {"num_layers": 2, "num_heads": 2, "hidden_dim": WIDTH, "patch_size": 4}
SWIN = {"patch_size": 2, "embed_dim": 8, "depths": (1, 1), "num_heads": (2, 2), "window_size": 2}
DENSENET = {"stackwise_num_repeats": [1, 1, 1], "compression_ratio": 0.5, "growth_rate": 4}


# Sound


def whisper_backbone() -> keras.Model:
    options = without(TEXT, "max_sequence_length", num_mels=8)
    return km.WhisperBackbone(max_encoder_sequence_length=16, max_decoder_sequence_length=LENGTH, **options)


def whisper() -> Built:
    backbone = whisper_backbone()
    head = keras.layers.Dense(VOCABULARY)(backbone.output["decoder_sequence_output"])
    x = {"encoder_features": floats(16, 8), "decoder_token_ids": ids(), "decoder_padding_mask": mask()}
    return keras.Model(backbone.input, head), x, ids(seed=3)


def whisper_encoder() -> Built:
    backbone = whisper_backbone()
    pooled = keras.layers.GlobalAveragePooling1D()(backbone.output["encoder_sequence_output"])
    model = keras.Model(backbone.input["encoder_features"], keras.layers.Dense(3)(pooled))
    return model, floats(16, 8), CLASSES


def moonshine() -> Built:
    backbone = km.MoonshineBackbone(
        vocabulary_size=VOCABULARY,
        filter_dim=WIDTH,
        encoder_num_layers=2,
        decoder_num_layers=2,
        hidden_dim=WIDTH,
        intermediate_dim=32,
        encoder_num_heads=2,
        decoder_num_heads=2,
    )
    model = km.MoonshineAudioToText(backbone=backbone, preprocessor=None)
    samples = 1024  # of which the encoder, by strides of 64, 3 and 2, makes two frames
    x = {
        "encoder_input_values": floats(samples, 1),
        "encoder_padding_mask": np.ones((BATCH, samples), bool),
        "decoder_token_ids": ids(),
        "decoder_padding_mask": mask(bool),
    }
    return model, x, ids(seed=3)


GEMMA = without(DECODER, "hidden_dim", "intermediate_dim", "num_query_heads") | {
    "num_query_heads": 2,
    "hidden_dim": WIDTH,
    "intermediate_dim": 32,
    "head_dim": 8,
}
T5GEMMA = {
    "vocabulary_size": VOCABULARY,
    "encoder_hidden_dim": WIDTH,
    "encoder_intermediate_dim": 32,
    "encoder_num_layers": 2,
    "encoder_num_attention_heads": 2,
    "encoder_num_key_value_heads": 1,
    "encoder_head_dim": 8,
    "encoder_layer_types": ["sliding_attention", "full_attention"],
    "decoder_hidden_dim": WIDTH,
    "decoder_intermediate_dim": 32,
    "decoder_num_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_num_key_value_heads": 1,
    "decoder_head_dim": 8,
    "decoder_layer_types": ["sliding_attention", "full_attention"],
    "dropout_rate": 0.0,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 8,
    "attention_bias": False,
    "hidden_activation": "gelu_approximate",
    "sliding_window": 4,
    "cross_attention_hidden_size": WIDTH,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "rope_max_wavelength": 10000.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
}

CONFIGURATIONS: dict[str, Callable[[], Built]] = {
    "BertTextClassifier": classifier("Bert", segments=True, **TEXT),
    "BertMaskedLM": bert_masked_lm,
    "RobertaTextClassifier": classifier("Roberta", **TEXT),
    "XLMRobertaTextClassifier": classifier("XLMRoberta", **TEXT),
    "DistilBertTextClassifier": classifier("DistilBert", **TEXT),
    "DebertaV3TextClassifier": classifier("DebertaV3", bucket_size=4, **TEXT),
    "AlbertTextClassifier": classifier("Albert", segments=True, embedding_dim=8, **TEXT),
    "FNetTextClassifier": classifier("FNet", segments=True, masked=False, **without(TEXT, "num_heads")),
    "RoformerV2TextClassifier": classifier(
        "RoformerV2", segments=True, masked=False, **without(TEXT, "max_sequence_length", head_size=8)
    ),
    "ElectraBackbone": electra,
    "XLNetBackbone": xlnet,
    "GPT2CausalLM": causal("GPT2", **TEXT),
    "OPTCausalLM": causal("OPT", **TEXT),
    "BloomCausalLM": causal("Bloom", **without(TEXT, "max_sequence_length")),
    "GPTNeoXCausalLM": causal("GPTNeoX", **TEXT),
    "FalconCausalLM": causal("Falcon", **without(TEXT, "num_heads", "max_sequence_length", num_attention_heads=2)),
    "GemmaCausalLM": causal("Gemma", **GEMMA),
    "Gemma3CausalLM": causal("Gemma3", image_size=None, vision_encoder=None, **GEMMA),
    "LlamaCausalLM": causal("Llama", **DECODER),
    "Llama3CausalLM": causal("Llama3", **DECODER),
    "MistralCausalLM": causal("Mistral", sliding_window=4, **DECODER),
    "MixtralCausalLM": causal("Mixtral", num_experts=2, top_k=1, sliding_window=4, **DECODER),
    "Phi3CausalLM": causal("Phi3", **DECODER),
    "QwenCausalLM": causal("Qwen", **DECODER),
    "Qwen3CausalLM": causal("Qwen3", head_dim=8, **DECODER),
    "GptOssCausalLM": causal("GptOss", num_experts=2, top_k=1, head_dim=8, sliding_window=4, **DECODER),
    "SmolLM3CausalLM": causal(
        "SmolLM3",
        **without(
            DECODER,
            "num_query_heads",
            num_attention_heads=2,
            attention_bias=False,
            attention_dropout=0.0,
            rope_layer_enabled_list=[True, False],
            layer_types=["full_attention", "full_attention"],
            mlp_bias=False,
            layer_norm_epsilon=1e-6,
            max_position_embeddings=LENGTH,
            rope_theta=10000.0,
            partial_rotary_factor=1.0,
        ),
    ),
    "BartSeq2SeqLM": seq2seq("Bart", **TEXT),
    "T5Seq2SeqLM": seq2seq("T5", **without(TEXT, "max_sequence_length")),
    "T5Backbone": t5_backbone,
    "T5GemmaSeq2SeqLM": seq2seq("T5Gemma", **T5GEMMA),
    "T5Gemma2Seq2SeqLM": seq2seq("T5Gemma2", **T5GEMMA),
    "EdRecSeq2SeqLM": edrec,
    "ViTImageClassifier": pictures("ViT", mlp_dim=32, **VIT),
    "DeiTImageClassifier": pictures("DeiT", intermediate_dim=32, **VIT),
    "SwinTransformerImageClassifier": pictures("SwinTransformer", **SWIN),
    "VGGImageClassifier": pictures(
        "VGG",
        image=(32, 32, 3),
        head={"pooling_hidden_dim": 32},
        stackwise_num_repeats=[1, 1],
        stackwise_num_filters=[4, 8],
    ),
    "DenseNetImageClassifier": pictures("DenseNet", **DENSENET),
    "WhisperBackbone": whisper,
    "WhisperEncoder": whisper_encoder,
    "MoonshineAudioToText": moonshine,
}
