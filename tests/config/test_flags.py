"""The environment's flags and engine options: what does nothing is named once, what there is not is an error."""

import logging

import pytest

from ipu_keras.compiler import options
from ipu_keras.config import flags
from ipu_keras.errors import ConfigError

API_CARD = """help use_ipu_model executable_cache_path use_synthetic_data synthetic_data_categories
synthetic_data_initializer ipu_model_tiles show_progress_bar log_cycle_count max_compilation_threads
max_infeed_threads null_data_feed while_loop_brute_force_max_trip_count tensor_map_file_path dump_schedule_as_dot
fallback_scheduler enable_hlo_verifier allow_nans sync_replica_start disable_poplar_version_check use_on_demand
on_demand_device_poll_time on_demand_device_timeout save_vertex_graph""".split()


@pytest.fixture
def variables(monkeypatch, caplog):
    """Sets a variable anew, as a new process would find it; the log."""
    caplog.set_level(logging.INFO, "ipu_keras")
    flags._parsed.cache_clear()
    options._allowed_by.cache_clear()
    return monkeypatch.setenv, caplog


def test_what_does_nothing_is_named_once(variables):
    setenv, log = variables
    setenv("TF_POPLAR_FLAGS", "--max_compilation_threads=40 --use_ipu_model --show_progress_bar=false --use_on_demand")
    for _ in range(3):
        assert flags.use_ipu_model() and flags.executable_cache_path() is None
    (record,) = log.records
    assert record.getMessage().endswith(
        "without an effect: --max_compilation_threads=40 --show_progress_bar=false --use_on_demand=true"
    )


def test_every_flag_of_the_original_is_known(variables):
    setenv, log = variables
    setenv("TF_POPLAR_FLAGS", " ".join(f"--{name}" for name in API_CARD))
    assert flags.use_ipu_model()
    helped, idle = (record.getMessage() for record in log.records)
    assert all(f"--{name}: " in helped or name in helped.splitlines()[-1] for name in API_CARD)
    assert all((f"--{name}=" in idle) == (name not in flags.FLAGS) for name in API_CARD)


def test_what_there_is_not_is_listed_at_once_with_the_nearest(variables):
    setenv, _ = variables
    setenv("TF_POPLAR_FLAGS", "--use_sinthetic_data --use_ipu_model -ipu_model_tiles=4 frog")
    for _ in range(2):
        with pytest.raises(ConfigError, match="did you mean --use_synthetic_data") as e:
            options.resolve_options({})
        assert "'-ipu_model_tiles=4' (did you mean --ipu_model_tiles?), 'frog';" in str(e.value)
    setenv("TF_POPLAR_FLAGS", "--executable_cache_path='/tmp/a")
    with pytest.raises(ConfigError, match="No closing quotation"):
        flags.executable_cache_path()


def test_quotes_hold_spaces(variables):
    variables[0]("TF_POPLAR_FLAGS", "--executable_cache_path='/tmp/my cache' --ipu_model_tiles=3 --use_ipu_model=1")
    assert flags.executable_cache_path() == "/tmp/my cache"
    assert flags.model_tiles() == 3


def test_engine_options(variables):
    setenv, log = variables
    setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all": "true", "debug.allowOutOfMemory": "true"}')
    assert all(options.resolve_options({})["allow_out_of_memory"] for _ in range(2))
    (record,) = log.records
    assert record.getMessage() == "POPLAR_ENGINE_OPTIONS: accepted, without an effect: autoReport.all = true"
