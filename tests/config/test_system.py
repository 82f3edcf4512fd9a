"""`configure_ipu_system` and its fellows: what they refuse, what they keep, what they log, what it all means."""

from __future__ import annotations

import dataclasses

import pytest

import ipu_keras as ipu
from ipu_keras.config import DeviceConnectionType, IPUConfig, StochasticRoundingBehaviour, system
from ipu_keras.errors import ConfigError, IPUError, UnsupportedError
from ipu_keras.target import TARGETS
from tests.config.test_config import DEPRECATED, NAMES, TREE, get, other, put

MODEL = "--use_ipu_model"
PROPORTION, PARTIALS = "availableMemoryProportion", "partialsType"
EXCHANGE, OVERFLOW = "opt.internalExchangeOptimisationTarget", "debug.allowOutOfMemory"
DISTRIBUTION = "experimental.multi_replica_distribution"
CLIP = {"half_overflow": "clip"}  # what any configuration says
FP, STABLE = "floating_point_behaviour", "experimental.enable_prng_stability"
GROUP = "norms.experimental.distributed_batch_norm_replica_group_size"


def made(**options):
    config = IPUConfig()
    for name, value in options.items():
        put(config, name, value)
    return config


def configured(flags="", monkeypatch=None, **options):
    """The system's target and options."""
    if flags:
        monkeypatch.setenv("TF_POPLAR_FLAGS", flags)
    made(**options).configure_ipu_system()
    return system.current().target, system.current().options


# --- the chip

CHIPS = [
    ({}, "", "gc200", None),
    ({"device_connection.version": "ipu1"}, "", "gc2", None),
    ({"device_connection.version": "ipu2"}, "", "gc200", None),
    ({"device_connection.version": "ipu21"}, "", "c600", None),
    ({"ipu_model.version": "ipu1"}, "", "gc2", None),
    ({"ipu_model.version": "ipu21"}, "", "c600", None),
    ({"ipu_model.version": ""}, "", "gc200", None),
    ({"ipu_model.version": "ipu1"}, MODEL, "gc2", None),
    ({"ipu_model.version": "ipu1", "device_connection.version": "ipu21"}, "", "c600", None),
    ({"ipu_model.version": "ipu1", "device_connection.version": "ipu21"}, MODEL, "c600", None),
    ({"ipu_model.tiles_per_ipu": 64}, "", "gc200", 64),
    ({"ipu_model.tiles_per_ipu": 64, "device_connection.version": "ipu21"}, "", "c600", 64),
    ({"ipu_model.tiles_per_ipu": 64, "ipu_model.version": "ipu1"}, MODEL, "gc2", 64),
    ({"ipu_model.tiles_per_ipu": 64}, f"{MODEL} --ipu_model_tiles=32", "gc200", 64),
    ({}, f"--show_progress_bar=true {MODEL}=true --ipu_model_tiles=32", "gc200", 32),
    ({}, "--ipu_model_tiles=32", "gc200", None),
    ({}, f"{MODEL}=false --ipu_model_tiles=32", "gc200", None),
]


@pytest.mark.parametrize(("options", "flags", "chip", "tiles"), CHIPS, ids=str)
def test_the_chip(monkeypatch, options, flags, chip, tiles):
    target, compile_options = configured(flags, monkeypatch, **options)
    assert target == dataclasses.replace(TARGETS[chip], tiles=tiles or TARGETS[chip].tiles)
    assert compile_options == CLIP


# --- the options of the compiler

COMPILE = [
    ({"matmuls.poplar_options": {PROPORTION: "0.3"}}, {"available_memory_proportion": 0.3}),
    ({"matmuls.poplar_options": {PROPORTION: 0.9}}, {"available_memory_proportion": 0.9}),
    ({"convolutions.poplar_options": {PROPORTION: "0.2"}}, {"available_memory_proportion": 0.2}),
    ({"matmuls.poplar_options": {PARTIALS: "half"}}, {"matmul_partials": "half"}),
    ({"convolutions.poplar_options": {PARTIALS: "half"}}, {"convolution_partials": "half"}),
    ({"convolutions.poplar_options": {PARTIALS: "float"}}, {"convolution_partials": "float"}),
    ({f"{FP}.nanoo": True}, {"half_overflow": "nan"}),
    ({f"{FP}.esr": StochasticRoundingBehaviour.ON}, {"stochastic_rounding": "on"}),
    ({f"{FP}.esr": StochasticRoundingBehaviour.ON, STABLE: True}, {"stochastic_rounding": "stable"}),
    ({f"{FP}.esr": StochasticRoundingBehaviour.REPLICA_IDENTICAL_ONLY}, {"stochastic_rounding": "identical"}),
    ({f"{FP}.oflo": True, f"{FP}.inv": True}, {"traps": ["inv", "oflo"]}),
    (
        {f"{FP}.set_all": True},
        {"half_overflow": "nan", "stochastic_rounding": "on", "traps": ["inv", "div0", "oflo"]},
    ),
    ({"compilation_poplar_options": {OVERFLOW: "true"}}, {"allow_out_of_memory": True}),
    ({"compilation_poplar_options": {OVERFLOW: "false"}}, {"allow_out_of_memory": False}),
    *(
        ({"compilation_poplar_options": {EXCHANGE: e}}, {"internal_exchange": e})
        for e in ("cycles", "memory", "balanced")
    ),
]


@pytest.mark.parametrize(("options", "expected"), COMPILE, ids=str)
def test_options_of_the_compiler(warned, options, expected):
    assert configured(**options) == (TARGETS["gc200"], CLIP | expected)
    assert warned() == []


def test_the_smaller_of_two_proportions_is_taken_and_said(warned):
    _, options = configured(
        **{"matmuls.poplar_options": {PROPORTION: "0.4"}, "convolutions.poplar_options": {PROPORTION: "0.25"}}
    )
    assert options == CLIP | {"available_memory_proportion": 0.25}
    (message,) = warned()
    assert "0.4 for matmuls" in message and "0.25 for convolutions" in message and "smaller, 0.25," in message


def test_equal_proportions_are_no_news(warned):
    same = {PROPORTION: "0.4"}
    _, options = configured(**{"matmuls.poplar_options": same, "convolutions.poplar_options": same})
    assert options == CLIP | {"available_memory_proportion": 0.4} and warned() == []


# --- what is refused

REFUSED = [
    ({"device_connection.version": "ipu3"}, "", ValueError, "device_connection.version is 'ipu3'"),
    ({"device_connection.version": "gc200"}, "", ValueError, "'ipu1', 'ipu2', 'ipu21'"),
    ({"ipu_model.version": "ipu3"}, "", ValueError, "ipu_model.version is 'ipu3'"),
    ({"ipu_model.version": ""}, MODEL, ValueError, "ipu_model.version is ''"),
    ({"ipu_model.tiles_per_ipu": -1}, "", ValueError, "tiles_per_ipu is -1"),
    ({}, f"{MODEL} --ipu_model_tiles=many", ValueError, "--ipu_model_tiles must be"),
    ({"device_connection.type": DeviceConnectionType.NEVER}, "", ValueError, "requires device_connection.version"),
    ({"device_connection.type": DeviceConnectionType.PRE_COMPILE}, "", ValueError, "PRE_COMPILE"),
    ({"auto_select_ipus": 1, "select_ipus": 1}, "", Exception, "Only one of"),
    ({"select_ipus": [3, 3]}, "", ValueError, "selected twice"),
    ({"select_ipus": -1}, "", ValueError, "numbered from 0"),
    ({"select_ipus": 0}, MODEL, Exception, "IPU model"),
    ({"auto_select_ipus": 0}, "", ValueError, "at least one IPU"),
    ({"auto_select_ipus": [1, -1]}, "", ValueError, "at least one IPU"),
    ({"auto_select_ipus": (1, 1)}, "", UnsupportedError, "one device is emulated"),
    ({"select_ipus": [0, 1]}, "", UnsupportedError, "one device is emulated"),
    ({f"{DISTRIBUTION}.process_count": 1, f"{DISTRIBUTION}.process_index": 1}, "", ValueError, "from 0 to 0"),
    ({f"{DISTRIBUTION}.process_count": 2, f"{DISTRIBUTION}.process_index": -1}, "", ValueError, "from 0 to 1"),
    ({f"{DISTRIBUTION}.process_count": -1}, "", ValueError, "process_count is -1"),
    ({f"{DISTRIBUTION}.process_count": 1}, MODEL, Exception, "IPU model"),
    ({f"{DISTRIBUTION}.process_count": 2}, "", UnsupportedError, "several processes are not there yet"),
    ({"io_tiles.place_ops_on_io_tiles": True}, "", ValueError, "io_tiles.num_io_tiles is 0"),
    ({GROUP: 0}, "", ValueError, "at least one replica"),
    ({GROUP: 2, "io_tiles.num_io_tiles": 32}, "", ValueError, "I/O tiles"),
    ({GROUP: 2}, "", ValueError, "must divide the number of replicas"),
    ({"matmuls.poplar_options": {PROPORTION: "1.5"}}, "", ValueError, "from 0 to 1"),
    ({"matmuls.poplar_options": {PROPORTION: "much"}}, "", ValueError, "'much'"),
    ({"matmuls.poplar_options": {PROPORTION: "nan"}}, "", ValueError, "from 0 to 1"),
    ({"convolutions.poplar_options": {PARTIALS: "double"}}, "", ValueError, "'float', 'half'"),
    ({"compilation_poplar_options": {OVERFLOW: "yes"}}, "", ValueError, "'true', 'false'"),
    ({"compilation_poplar_options": {EXCHANGE: "speed"}}, "", ValueError, "'cycles', 'memory', 'balanced'"),
]


@pytest.mark.parametrize(("options", "flags", "kind", "phrase"), REFUSED, ids=str)
def test_refusals_leave_the_system_as_it_was(monkeypatch, options, flags, kind, phrase):
    configured(**{"ipu_model.tiles_per_ipu": 8})
    before = system.current()
    with pytest.raises(kind) as error:
        configured(flags, monkeypatch, **options)
    assert phrase in str(error.value) and isinstance(error.value, IPUError)
    assert system.current() is before


def test_lists_and_dictionaries_are_checked_again(cfg):
    cfg.compilation_poplar_options["autoReport.all"] = True
    with pytest.raises(TypeError, match="compilation_poplar_options must be of type"):
        cfg.configure_ipu_system()


@pytest.mark.parametrize("value", [None, {}, "config", IPUConfig], ids=str)
def test_only_a_config_configures(value):
    with pytest.raises(TypeError, match="takes an IPUConfig"):
        ipu.config.configure_ipu_system(value)


# --- what is accepted, and said

ACTING = {
    "compilation_poplar_options",
    "auto_select_ipus",
    "convolutions.poplar_options",
    "matmuls.poplar_options",
    "device_connection.version",
    "ipu_model.tiles_per_ipu",
    "ipu_model.version",
    "allow_recompute",
    "optimizations.enable_graph_outlining",
    "optimizations.minimum_remote_tensor_size",
    GROUP,
    STABLE,
    *(f"{FP}.{name}" for name in ("inv", "div0", "oflo", "esr", "nanoo", "set_all")),
}
NEEDS = {
    "device_connection.type": {"device_connection.version": "ipu2"},
    "io_tiles.place_ops_on_io_tiles": {"io_tiles.num_io_tiles": 32},
    f"{DISTRIBUTION}.process_index": {f"{DISTRIBUTION}.process_count": 0},
}
VALUES = {
    "select_ipus": [0],
    f"{DISTRIBUTION}.process_count": 1,
    "device_connection.type": DeviceConnectionType.ON_DEMAND,
}
IN_VAIN = [row for row in TREE if row[0] not in ACTING | {GROUP} | set(DEPRECATED)]


@pytest.mark.parametrize(("name", "kind", "default"), IN_VAIN, ids=[row[0] for row in IN_VAIN])
def test_every_option_without_an_effect_is_named_once(warned, name, kind, default):
    config = made(**{**NEEDS.get(name, {}), name: VALUES.get(name, other(kind, default))})
    config.configure_ipu_system()
    config.configure_ipu_system()
    (message,) = warned()
    assert message.startswith("configure_ipu_system: accepted, without an effect yet: ")
    assert message.count(f"{name} = {get(config, name)}") == 1


def test_a_default_config_is_no_news(warned, cfg):
    cfg.configure_ipu_system()
    cfg.auto_select_ipus = 1
    ipu.config.reset_ipu_configuration()
    cfg.configure_ipu_system()
    assert warned() == []


def test_all_in_one_line_with_unknown_keys(warned, cfg):
    cfg.experimental.enable_prng_stability = True
    cfg.matmuls.poplar_options = {"fullyConnectedPass": "TRAINING_FWD", PROPORTION: "0.5"}
    cfg.compilation_poplar_options = {"autoReport.all": "true", OVERFLOW: "true"}
    cfg.ipu_model.version, cfg.device_connection.version = "ipu1", "ipu21"
    with pytest.warns(DeprecationWarning):
        cfg.optimizations.enable_fast_math = True
    cfg.configure_ipu_system()
    (message,) = warned()
    assert message.partition("yet: ")[2].split("; ") == [
        "optimizations.math.fast = True",
        "ipu_model.version = ipu1 (device_connection.version is ipu21)",
        "compilation_poplar_options['autoReport.all'] = true",
        "matmuls.poplar_options['fullyConnectedPass'] = TRAINING_FWD",
        "experimental.enable_prng_stability = True (floating_point_behaviour.esr is OFF)",
    ]


def test_this_file_knows_all_options():
    assert set(NAMES) == ACTING | {GROUP} | set(DEPRECATED) | {row[0] for row in IN_VAIN}
    assert {n for n in NAMES if IPUConfig().get_attribute_metadata(n).acts} == ACTING


# --- the system as a state


def test_nothing_is_configured_at_first():
    ipu.config.reset_ipu_configuration()
    with pytest.raises(RuntimeError, match="No IPU devices configured") as error:
        ipu.config.get_ipu_config()
    assert isinstance(error.value, IPUError)


@pytest.mark.parametrize("name", ["auto_select_ipus", "select_ipus"])
def test_an_integer_becomes_a_list_on_the_object(cfg, name):
    put(cfg, name, 1)
    ipu.config.configure_ipu_system(cfg, "cpu")
    assert get(cfg, name) == [1] and get(ipu.config.get_ipu_config()[0], name) == [1]


def test_values_count_at_configure_time_and_are_copied(cfg):
    cfg.ipu_model.tiles_per_ipu = 8
    cfg.configure_ipu_system()
    cfg.ipu_model.tiles_per_ipu = 16
    (known,) = ipu.config.get_ipu_config(session=None)
    assert known.ipu_model.tiles_per_ipu == 8 == system.current().target.tiles
    known.ipu_model.tiles_per_ipu = 4
    assert ipu.config.get_ipu_config()[0].ipu_model.tiles_per_ipu == 8


def test_another_configuration_resets_with_a_warning(warned):
    configured(**{"ipu_model.tiles_per_ipu": 8})
    before = system.current()
    configured(**{"ipu_model.tiles_per_ipu": 8})
    assert system.current() is before and warned() == []
    configured(**{"ipu_model.tiles_per_ipu": 16})
    (message,) = warned()
    assert "configured differently already" in message and system.current().target.tiles == 16
    with pytest.raises(RuntimeError, match="configured differently already"):
        ipu.config.configure_ipu_system(made(), reset_configuration=False)
    assert system.current().target.tiles == 16
    ipu.config.reset_ipu_configuration()
    ipu.config.configure_ipu_system(made(), reset_configuration=False)
    assert system.current().target.tiles == 1472 and len(warned()) == 1


def test_errors_are_of_ours():
    with pytest.raises(ConfigError):
        made(**{"device_connection.version": "ipu9"}).configure_ipu_system()
