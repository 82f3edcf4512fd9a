"""The table of all options; IPUConfig is made from it."""

from __future__ import annotations

from typing import Any

from ipu_keras.config.enums import (
    DeviceConnectionType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from ipu_keras.config.metadata import AttributeMetadata

__all__ = ["OPTIONS"]

_IDS = int | list[int] | tuple[int, ...]
_FP, _MATH = "floating_point_behaviour", "optimizations.math"
_REPLICAS, _BATCH_NORM = "experimental.multi_replica_distribution", "norms.experimental"

_ACTING: list[tuple[str, Any, Any, int, str]] = [
    (
        f"{_BATCH_NORM}.distributed_batch_norm_replica_group_size",
        int,
        1,
        2,
        "consecutive replicas that share the statistics of a batch normalization; divides the number of replicas",
    ),
    ("allow_recompute", bool, False, 1, "pipelines compute activations again in the backward pass"),
    (
        "compilation_poplar_options",
        dict[str, str],
        {},
        1,
        'options of the engine: "debug.allowOutOfMemory" ("true", "false") and '
        '"opt.internalExchangeOptimisationTarget" ("cycles", "memory", "balanced") act',
    ),
    ("auto_select_ipus", _IDS, [], 1, "IPUs for each logical device; nothing selected: one device of one IPU"),
    (
        "convolutions.poplar_options",
        dict,
        {},
        1,
        '"availableMemoryProportion" (0 to 1) and "partialsType" ("float", "half") act',
    ),
    ("matmuls.poplar_options", dict, {}, 1, 'as of convolutions: "availableMemoryProportion", "partialsType"'),
    ("experimental.enable_prng_stability", bool, False, 2, "equal weights on replicas with stochastic rounding"),
    (f"{_FP}.inv", bool, False, 1, "trap invalid operations"),
    (f"{_FP}.div0", bool, False, 1, "trap divisions by zero"),
    (f"{_FP}.oflo", bool, False, 1, "trap overflows"),
    (
        f"{_FP}.esr",
        StochasticRoundingBehaviour,
        StochasticRoundingBehaviour.OFF,
        1,
        "stochastic rounding of fp16",
    ),
    (f"{_FP}.nanoo", bool, False, 1, "an fp16 overflow gives NaN, not the largest number"),
    (f"{_FP}.set_all", bool, False, 2, "all five of the others on, esr being ON"),
    ("optimizations.enable_graph_outlining", bool, True, 3, "equal products are code once where code is scarce"),
    ("optimizations.minimum_remote_tensor_size", int, 128, 2, "bytes below which a tensor is not offloaded"),
    ("device_connection.version", str, "", 1, 'the chip: "ipu1", "ipu2", "ipu21", or "" for that of ipu_model'),
    ("ipu_model.tiles_per_ipu", int, 0, 3, "tiles of the chip; 0 for as many as the version has"),
    ("ipu_model.version", str, "ipu2", 3, 'the chip where device_connection.version is "": "ipu1", "ipu2", "ipu21"'),
]

_ACCEPTED: list[tuple[str, Any, Any, int, str]] = [
    ("selection_order", SelectionOrder, SelectionOrder.AUTO, 2, "order of the chips of a device of several"),
    ("serialization_output_folder", str, "", 3, 'directory to write executables to; "" for none'),
    ("gcl_poplar_options", dict, {}, 3, "options of collectives"),
    ("select_ipus", _IDS, [], 2, "ids of devices; excludes auto_select_ipus"),
    ("matmuls.clear_pass_type", bool, False, 3, "do not tell products which pass they are of"),
    ("slices.poplar_options", dict, {}, 2, "options of embeddings and gathers"),
    ("pooling.poplar_options", dict, {}, 3, "options of pooling"),
    (
        "device_connection.type",
        DeviceConnectionType,
        DeviceConnectionType.ALWAYS,
        1,
        "when the device is attached; NEVER and PRE_COMPILE need device_connection.version",
    ),
    ("device_connection.enable_remote_buffers", bool, False, 1, "streaming memory where no device is attached"),
    ("experimental.always_rearrange_copies_on_the_host", bool, False, 2, "rearrange streams on the host"),
    ("experimental.enable_remote_buffer_embedding", bool, False, 3, "host embeddings in streaming memory"),
    (f"{_REPLICAS}.process_index", int, 0, 3, "number of this process, below process_count"),
    (f"{_REPLICAS}.process_count", int, 0, 3, "processes that replicas are spread over; 0 for off"),
    ("io_tiles.num_io_tiles", int, 0, 2, "tiles that do nothing but I/O"),
    ("io_tiles.place_ops_on_io_tiles", bool, False, 2, "use the I/O tiles, of which there must be some"),
    ("io_tiles.available_memory_proportion", float, 0.9, 2, "share of an I/O tile's memory for I/O"),
    ("ipu_model.compile_ipu_code", bool, True, 3, "compile for the chip, not for the host"),
    ("norms.use_stable_statistics", bool, False, 2, "subtract the mean before the variance is computed"),
    (f"{_MATH}.fast", bool, False, 2, "rewrites of arithmetic that may change results"),
    (f"{_MATH}.dot_strength", bool, True, 3, "strength reduction of products"),
    ("optimizations.prefetch_data_streams", bool, True, 2, "fetch streams ahead"),
    ("optimizations.combine_embedding_lookups", bool, False, 3, "one lookup for several of one table"),
    ("optimizations.combine_matmuls", bool, False, 3, "one product for several of one operand"),
    ("optimizations.merge_infeed_io_copies", bool, True, 2, "one copy for all tensors of a feed"),
    ("optimizations.maximum_cross_replica_sum_buffer_size", int, 0, 1, "bytes of sums over replicas done at once"),
    ("optimizations.maximum_reduce_scatter_buffer_size", int, 0, 3, "bytes of reduce-scatters done at once"),
    ("optimizations.maximum_inter_ipu_copies_buffer_size", int, 0, 3, "bytes of copies between IPUs done at once"),
    ("optimizations.maximum_send_recv_cluster_size", int, 0, 3, "bytes of sends and receives done at once"),
    ("optimizations.maximum_reduce_many_buffer_size", int, 0, 2, "bytes of reductions done at once"),
    ("optimizations.maximum_all_gather_buffer_size", int, 0, 3, "bytes of all-gathers done at once"),
    (
        "optimizations.merge_remote_buffers",
        MergeRemoteBuffersBehaviour,
        MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
        3,
        "whether buffers in streaming memory are merged",
    ),
    ("optimizations.enable_gather_simplifier", bool, True, 3, "gathers become slices where they can"),
    ("optimizations.triangular_solve_expander_block_size", int, 0, 3, "block of triangular solves; 0 for a choice"),
    ("optimizations.cholesky_block_size", int, 0, 3, "block of Cholesky decompositions; 0 for a choice"),
    ("optimizations.enable_dynamic_slice_replacement", bool, True, 3, "other operations for dynamic slices"),
    (
        "scheduling.algorithm",
        SchedulingAlgorithm,
        SchedulingAlgorithm.CHOOSE_BEST,
        1,
        "how operations are put in order",
    ),
    ("scheduling.maximum_scheduler_lookahead_depth", int, 5, 3, "of LOOK_AHEAD"),
    ("scheduling.maximum_scheduler_search_space_size", int, 64, 3, "of LOOK_AHEAD"),
]

_DEPRECATED: list[tuple[str, Any, Any, int, str, str]] = [
    ("optimizations.enable_fast_math", bool, False, 2, "the same as optimizations.math.fast", "math.fast"),
]


def _table() -> dict[str, AttributeMetadata]:
    rows = [
        *(AttributeMetadata(n, kind, default, doc, tier, acts=True) for n, kind, default, tier, doc in _ACTING),
        *(AttributeMetadata(n, kind, default, doc, tier) for n, kind, default, tier, doc in _ACCEPTED),
        *(
            AttributeMetadata(n, kind, default, doc, tier, moved_to=to)
            for n, kind, default, tier, doc, to in _DEPRECATED
        ),
    ]
    return {row.name: row for row in sorted(rows, key=lambda row: row.name)}


OPTIONS: dict[str, AttributeMetadata] = _table()
"""Every option by its full name."""
