"""Stages by patterns for names, on a model of keras-hub whose code one does not touch."""

import re

import keras
import pytest

from ipu_keras import IPUStrategy
from ipu_keras.keras.pipeline import assign_by_name, stage_of, stages

hub = pytest.importorskip("keras_hub")

CONFIG = {
    "vocabulary_size": 32,
    "num_layers": 3,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "max_sequence_length": 6,
}


@pytest.fixture(autouse=True)
def scope():
    keras.backend.clear_session(free_memory=False)
    with IPUStrategy().scope():
        yield


def backbone():
    return hub.models.BertBackbone(**CONFIG, name="bert")


def test_a_backbone_by_patterns():
    model = backbone()
    assign_by_name(model, {"transformer_layer_0": 1, "transformer_layer_[12]": 2, "pooled_dense": 2, "*": 0})
    found = {path.removeprefix("bert/"): stage for path, stage in stage_of(model).items()}
    assert found["token_embedding"] == found["segment_embedding"] == found["embeddings_layer_norm"] == 0
    assert [found[f"transformer_layer_{k}"] for k in range(3)] == [1, 2, 2]
    assert found["pooled_dense"] == 2 and stages(model) == 3
    slices = [a for a in model.get_pipeline_stage_assignment() if type(a.layer).__name__ == "GetItem"]
    assert [a.pipeline_stage for a in slices] == [2]  # x[:, 0] is where its x is


def test_a_task_whose_backbone_is_nested():
    model = hub.models.BertTextClassifier(backbone=backbone(), num_classes=2, preprocessor=None)
    late = {re.compile(r"bert/transformer_layer_\d|bert/pooled_dense"): 1, "logits": 1}
    with pytest.raises(
        ValueError, match=r"'classifier_dropout' in pipeline stage 0 reads .* 'pooled_dense' in the later"
    ):
        assign_by_name(model, {**late, "*": 0})
    assign_by_name(model, {**late, "classifier_*": 1, "*": 0})
    found = stage_of(model)
    root = model.name
    assert found[f"{root}/bert/token_embedding"] == 0 and found[f"{root}/bert/transformer_layer_2"] == 1
    assert found[f"{root}/logits"] == found[f"{root}/classifier_dropout"] == 1
    assert stages(model) == 2 and stages(model.backbone) == 0  # the root model has them


def test_a_model_as_a_whole():
    model = hub.models.BertTextClassifier(backbone=backbone(), num_classes=2, preprocessor=None)
    assign_by_name(model, {"bert": 0, "*": 1})
    found = stage_of(model)
    assert {stage for path, stage in found.items() if "/bert/" in path} == {0}
    assert {stage for path, stage in found.items() if "/bert/" not in path} == {1}


def test_tied_weights_may_be_in_two_stages():
    model = hub.models.BertMaskedLM(backbone=backbone(), preprocessor=None)
    assign_by_name(model, {"transformer_layer_*": 1, "pooled_dense": 1, "mlm_head": 1, "*": 0})
    assert stages(model) == 2


@pytest.mark.parametrize(
    "patterns, message",
    [
        ({"transformer_layer_*": 1}, "no pattern matches token_embedding"),
        ({"token_embedding": 0, "decoder_*": 1, "*": 1}, "no layer is left for the pattern.* 'decoder_"),
        ({"*embedding*": 1, "*": 0}, "in the later stage 1"),
        ({"*": -1}, "0 or more"),
    ],
)
def test_patterns_that_do_not_fit(patterns, message):
    model = backbone()
    with pytest.raises(ValueError, match=message):
        assign_by_name(model, patterns)
    assert stages(model) == 0
