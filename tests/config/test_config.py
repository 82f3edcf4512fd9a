"""The object: the whole tree, its rules, and its forms as text, dictionary and JSON."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import subprocess
import sys

import pytest

from ipu_keras.config import (
    DeviceConnectionType,
    ExecutionProfileType,
    IPUConfig,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from ipu_keras.errors import ConfigError, IPUError
from tests.config.tree_data import BAD, GOOD, TREE

DEPRECATED = {"optimizations.enable_fast_math": "optimizations.math.fast"}
NAMES = [name for name, _, _ in TREE]
CATEGORIES = sorted({name[:i] for name in NAMES for i, sign in enumerate(name) if sign == "."})

every = pytest.mark.parametrize(("name", "kind", "default"), TREE, ids=NAMES)
quiet = pytest.mark.filterwarnings("ignore:optimizations.enable_fast_math:DeprecationWarning")


def get(config, name):
    return functools.reduce(getattr, name.split("."), config)


def put(config, name, value):
    above, _, last = name.rpartition(".")
    setattr(get(config, above) if above else config, last, value)


def other(kind, default):
    """A value that is not the default."""
    return next(value for value in GOOD[kind] if value != default)


# --- the tree


def test_there_is_nothing_else_in_the_tree(cfg):
    assert sorted(cfg.to_dict()) == sorted(NAMES)


@quiet
@every
def test_type_and_default(cfg, name, kind, default):
    value = get(cfg, name)
    assert value == default and type(value) is type(default)
    known = cfg.get_attribute_metadata(name)
    assert (known.name, known.type, known.default) == (name, kind, default)
    assert type(known.default) is type(default) and known.doc
    assert known.deprecated == (name in DEPRECATED) == bool(known.deprecated_msg)


@quiet
@every
def test_values_of_its_type(cfg, name, kind, default):
    for value in GOOD[kind]:
        put(cfg, name, value)
        assert get(cfg, name) == value and type(get(cfg, name)) is type(value)


@quiet
@every
def test_values_of_another_type(cfg, name, kind, default):
    for value in BAD[kind]:
        with pytest.raises(TypeError, match=f"{name} must be of type") as error:
            put(cfg, name, value)
        assert isinstance(error.value, IPUError) and repr(value) in str(error.value)
        with pytest.raises(TypeError):
            cfg.get_attribute_metadata(name).check_type(value)
    assert get(cfg, name) == default


def test_two_configs_share_nothing():
    one, two = IPUConfig(), IPUConfig()
    one.matmuls.poplar_options["a"] = "b"
    one.auto_select_ipus.append(1)
    assert two.matmuls.poplar_options == {} and two.auto_select_ipus == [] and one.convolutions.poplar_options == {}
    assert IPUConfig().get_attribute_metadata("matmuls.poplar_options").default == {}


# --- names


MISSPELT = [
    ("alow_recompute", "allow_recompute"),
    ("device_connection.versoin", "device_connection.version"),
    ("ipu_model.tile_per_ipu", "ipu_model.tiles_per_ipu"),
    ("optimizations.math.fst", "optimizations.math.fast"),
    ("floating_point_behavior", "floating_point_behaviour"),
    ("tiles_per_ipu", "ipu_model.tiles_per_ipu"),
    ("convolutions.poplar_option", "convolutions.poplar_options"),
]


@pytest.mark.parametrize(("name", "near"), MISSPELT, ids=[name for name, _ in MISSPELT])
def test_unknown_names(cfg, name, near):
    phrase = f"'{name}' is not a valid attribute of this config. Did you mean '{near}'?"
    for act in (lambda: put(cfg, name, 1), lambda: get(cfg, name), lambda: cfg.get_attribute_metadata(name)):
        with pytest.raises(ValueError) as error:
            act()
        assert str(error.value) == phrase and not isinstance(error.value, AttributeError)
        assert isinstance(error.value, IPUError)


def test_a_name_like_no_other_has_no_suggestion(cfg):
    with pytest.raises(ValueError, match=r"is not a valid attribute of this config\.$"):
        cfg.qqqq = 1


def test_hasattr_raises(cfg):
    with pytest.raises(ValueError, match="is not a valid attribute of this config"):
        hasattr(cfg, "no_such_option")


@pytest.mark.parametrize("name", CATEGORIES)
def test_categories_cannot_be_assigned_to_nor_deleted(cfg, name):
    for value in (True, {}, copy.deepcopy(get(cfg, name))):
        with pytest.raises(Exception, match="is a category and cannot be assigned to") as error:
            put(cfg, name, value)
        assert name in str(error.value) and isinstance(error.value, IPUError)
    with pytest.raises(Exception, match="cannot be deleted"):
        delattr(cfg, name.split(".")[0])
    with pytest.raises(ValueError, match="it is a category"):
        cfg.get_attribute_metadata(name)


def test_metadata_by_the_name_from_a_category_on(cfg):
    for name in ("math.fast", "enable_fast_math"):
        assert cfg.optimizations.get_attribute_metadata(name).name == f"optimizations.{name}"
    with pytest.raises(ValueError, match="Did you mean"):
        cfg.optimizations.get_attribute_metadata("optimizations.math.fast")


def test_deprecated_names_warn_and_work(cfg):
    with pytest.warns(DeprecationWarning, match=r"enable_fast_math is deprecated.*optimizations\.math\.fast") as seen:
        cfg.optimizations.enable_fast_math = True
    assert seen[0].filename == __file__
    assert cfg.optimizations.math.fast is True
    cfg.optimizations.math.fast = False
    with pytest.warns(DeprecationWarning) as seen:
        assert cfg.optimizations.enable_fast_math is False
    assert seen[0].filename == __file__
    with pytest.warns(DeprecationWarning) as seen:
        cfg.get_attribute_metadata("optimizations.enable_fast_math").warn_if_deprecated()
    assert seen[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_other_names_and_whole_configs_do_not_warn(cfg):
    cfg.optimizations.math.fast = True
    cfg.get_attribute_metadata("optimizations.math.fast").warn_if_deprecated()
    repr(cfg), copy.deepcopy(cfg), IPUConfig().from_dict(cfg.to_dict()), dir(cfg)


# --- copies and forms


@pytest.fixture
def changed(cfg):
    """No option has its default."""
    for name, kind, default in TREE:
        if name not in DEPRECATED:
            put(cfg, name, other(kind, default))
    return cfg


def copies():
    yield "deepcopy", copy.deepcopy
    yield "copy", copy.copy
    yield "pickle", lambda config: pickle.loads(pickle.dumps(config))


@quiet
@pytest.mark.parametrize(("way", "duplicate"), list(copies()), ids=[way for way, _ in copies()])
def test_copies_are_equal_and_apart(changed, way, duplicate):
    twin = duplicate(changed)
    assert type(twin) is IPUConfig and twin.to_dict() == changed.to_dict() and str(twin) == str(changed)
    before = changed.to_dict()
    twin.matmuls.poplar_options["new"] = "value"
    twin.optimizations.math.fast = not twin.optimizations.math.fast
    twin.allow_recompute = not twin.allow_recompute
    assert changed.to_dict() == before != twin.to_dict()
    with pytest.raises(ValueError, match=r"Did you mean 'ipu_model\.version'"):
        twin.ipu_model.versio = ""


def test_text(cfg):
    cfg.auto_select_ipus = 1
    cfg.device_connection.version = "ipu21"
    lines = str(cfg).splitlines()
    assert repr(cfg) == str(cfg) and len(lines) == len(TREE)
    assert "auto_select_ipus = 1" in lines and "device_connection.version = ipu21" in lines
    assert "scheduling.algorithm = SchedulingAlgorithm.CHOOSE_BEST" in lines
    assert str(cfg.optimizations.math).splitlines() == [
        "optimizations.math.dot_strength = True",
        "optimizations.math.fast = False",
    ]


def test_dict_has_plain_values(changed):
    values = changed.to_dict()
    assert values["scheduling.algorithm"] == SchedulingAlgorithm.CLUSTERING.value == 1
    assert type(values["floating_point_behaviour.esr"]) is int
    values["matmuls.poplar_options"]["z"] = "z"
    assert "z" not in changed.matmuls.poplar_options


@quiet
def test_round_trips(changed, warned):
    for back in (
        lambda new: new.from_dict(changed.to_dict()),
        lambda new: new.from_json(changed.to_json()),
        lambda new: new.from_json(json.dumps(changed.to_dict(), indent=1)),
    ):
        new = IPUConfig()
        back(new)
        assert new.to_dict() == changed.to_dict() and str(new) == str(changed)
        assert new.scheduling.algorithm is SchedulingAlgorithm.CLUSTERING
    assert warned() == []


def test_missing_keys_keep_their_values_and_are_logged(cfg, warned):
    cfg.ipu_model.tiles_per_ipu = 8
    cfg.from_dict({"allow_recompute": True, "selection_order": 2})
    assert cfg.allow_recompute and cfg.selection_order is SelectionOrder.SNAKE and cfg.ipu_model.tiles_per_ipu == 8
    (message,) = warned()
    assert "missing" in message and "ipu_model.tiles_per_ipu" in message and "allow_recompute" not in message


def test_a_dict_of_a_deprecated_name_alone(cfg):
    with pytest.warns(DeprecationWarning):
        cfg.from_dict({"optimizations.enable_fast_math": True})
    assert cfg.optimizations.math.fast


BROKEN = [
    ({"allow_recompue": True}, ValueError, "Did you mean 'allow_recompute'"),
    ({"matmuls": {}}, ValueError, "it is a category"),
    ({"allow_recompute": 1}, TypeError, "allow_recompute must be of type bool"),
    ({"selection_order": 9}, ConfigError, r"selection_order is 9; there are 0 \(AUTO\)"),
    ({"selection_order": True}, TypeError, "selection_order must be of type SelectionOrder"),
]


@pytest.mark.parametrize(("values", "kind", "phrase"), BROKEN, ids=[p for _, _, p in BROKEN])
def test_a_wrong_dict_changes_nothing(cfg, values, kind, phrase):
    for take in (lambda: cfg.from_dict({"allow_recompute": True, **values}), lambda: cfg.from_json(json.dumps(values))):
        with pytest.raises(kind, match=phrase):
            take()
    assert cfg.to_dict() == IPUConfig().to_dict()


@pytest.mark.parametrize("text", ["", "{", "[1]", "3"])
def test_text_that_is_no_json_object(cfg, text):
    with pytest.raises(ConfigError, match="no JSON"):
        cfg.from_json(text)


# --- enumerations


ENUMS = {
    SelectionOrder: "AUTO ZIGZAG SNAKE HOOF",
    DeviceConnectionType: "ALWAYS ON_DEMAND NEVER PRE_COMPILE",
    ExecutionProfileType: "NO_PROFILE DEVICE_PROFILE IPU_PROFILE TILE_PROFILE",
    MergeRemoteBuffersBehaviour: "NO_MERGING MERGE IF_BENEFICIAL",
    SchedulingAlgorithm: "CHOOSE_BEST CLUSTERING POST_ORDER LOOK_AHEAD SHORTEST_PATH",
    StochasticRoundingBehaviour: "OFF ON REPLICA_IDENTICAL_ONLY",
}


@pytest.mark.parametrize("kind", ENUMS, ids=lambda kind: kind.__name__)
def test_enums(kind):
    names = ENUMS[kind].split()
    assert [(m.name, m.value) for m in kind] == [(name, i) for i, name in enumerate(names)]
    assert [str(m).split(".")[-1] for m in kind] == names
    assert [vars(kind)[name] for name in names] == list(kind)


def test_from_bool():
    assert StochasticRoundingBehaviour.from_bool(True) is StochasticRoundingBehaviour.ON
    assert StochasticRoundingBehaviour.from_bool(False) is StochasticRoundingBehaviour.OFF


# --- the module


def test_the_configuration_needs_no_tensorflow():
    code = (
        "import sys, ipu_keras as ipu; assert 'ipu_keras.config' not in sys.modules\n"
        "c = ipu.config.IPUConfig(); c.auto_select_ipus = 1; c.configure_ipu_system()\n"
        "assert len(ipu.config.get_ipu_config()) == 1\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
