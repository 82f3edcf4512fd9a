"""`generate()` of a model made in the scope runs on the device and writes the tokens that plain Keras writes."""

import keras
import numpy as np
import pytest

import ipu_keras
from ipu_keras import IPUStrategy
from tests.hub.configurations import CONFIGURATIONS, LENGTH, NotThere
from tests.sweep import in_turns

ALWAYS = {"GPT2CausalLM", "BartSeq2SeqLM"}
WRITERS = [n for n in CONFIGURATIONS if n.endswith(("CausalLM", "Seq2SeqLM", "AudioToText"))]
PROMPT = 3

SAMPLERS = {
    "greedy": lambda s: s.GreedySampler(),
    "top-k": lambda s: s.TopKSampler(5, seed=3),
    "top-p": lambda s: s.TopPSampler(0.9, seed=3),
    "random": lambda s: s.RandomSampler(seed=3, temperature=1.5),
    "beam": lambda s: s.BeamSampler(num_beams=3),
    "contrastive": lambda s: s.ContrastiveSampler(k=3, alpha=0.5),
}


def prompts(x):
    """The model's inputs with only the first tokens of what it writes given."""
    x = {k: np.array(v) for k, v in x.items()}
    written = "decoder_" if "decoder_token_ids" in x else ""
    x[f"{written}token_ids"][:, PROMPT:] = 0
    x[f"{written}padding_mask"] = np.repeat([np.arange(LENGTH) < PROMPT], len(x[f"{written}token_ids"]), 0)
    return x, f"{written}token_ids"


def both(name, sampler, **options):
    """Tokens of plain Keras and of the device, and how many device executions that took."""
    import keras_hub

    try:
        keras.utils.set_random_seed(7)
        plain, x, _ = CONFIGURATIONS[name]()
    except NotThere as absent:
        pytest.skip(str(absent))
    x, written = prompts(x)
    with IPUStrategy().scope():
        model, _, _ = CONFIGURATIONS[name]()
        model.compile(sampler=SAMPLERS[sampler](keras_hub.samplers))
    model.set_weights(plain.get_weights())
    plain.compile(sampler=SAMPLERS[sampler](keras_hub.samplers), jit_compile=True)
    try:
        theirs = plain.generate({k: v.copy() for k, v in x.items()}, **options)
    except ValueError as refused:
        pytest.skip(f"plain Keras cannot generate with it: {refused}")
    before = ipu_keras.executions()
    ours = model.generate({k: v.copy() for k, v in x.items()}, **options)
    executions = ipu_keras.executions() - before
    return np.asarray(theirs[written]), np.asarray(ours[written]), executions


@pytest.mark.parametrize("name", in_turns(WRITERS, 40, ALWAYS))
def test_greedy_generation(name):
    plain, device, executions = both(name, "greedy", stop_token_ids=None)
    assert executions == 1
    assert (plain[:, PROMPT:] != 0).any()
    np.testing.assert_array_equal(device, plain)


@pytest.mark.parametrize("sampler", in_turns(SAMPLERS, 3, always=("greedy",)))
def test_samplers(sampler):
    plain, device, executions = both("GPT2CausalLM", sampler, stop_token_ids=[5, 9])
    assert executions == 1
    np.testing.assert_array_equal(device, plain)
