"""Every option of the IPU API, with its type and its default: facts, written down without looking at the table."""

from __future__ import annotations

from ipu_keras.config import (
    DeviceConnectionType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)

SELECTION = int | list[int] | tuple[int, ...]

TREE = [
    ("allow_recompute", bool, False),
    ("selection_order", SelectionOrder, SelectionOrder.AUTO),
    ("serialization_output_folder", str, ""),
    ("compilation_poplar_options", dict[str, str], {}),
    ("gcl_poplar_options", dict, {}),
    ("auto_select_ipus", SELECTION, []),
    ("select_ipus", SELECTION, []),
    ("convolutions.poplar_options", dict, {}),
    ("matmuls.poplar_options", dict, {}),
    ("matmuls.clear_pass_type", bool, False),
    ("slices.poplar_options", dict, {}),
    ("pooling.poplar_options", dict, {}),
    ("device_connection.type", DeviceConnectionType, DeviceConnectionType.ALWAYS),
    ("device_connection.version", str, ""),
    ("device_connection.enable_remote_buffers", bool, False),
    ("experimental.always_rearrange_copies_on_the_host", bool, False),
    ("experimental.enable_remote_buffer_embedding", bool, False),
    ("experimental.enable_prng_stability", bool, False),
    ("experimental.multi_replica_distribution.process_index", int, 0),
    ("experimental.multi_replica_distribution.process_count", int, 0),
    ("floating_point_behaviour.inv", bool, False),
    ("floating_point_behaviour.div0", bool, False),
    ("floating_point_behaviour.oflo", bool, False),
    ("floating_point_behaviour.esr", StochasticRoundingBehaviour, StochasticRoundingBehaviour.OFF),
    ("floating_point_behaviour.nanoo", bool, False),
    ("floating_point_behaviour.set_all", bool, False),
    ("io_tiles.num_io_tiles", int, 0),
    ("io_tiles.place_ops_on_io_tiles", bool, False),
    ("io_tiles.available_memory_proportion", float, 0.9),
    ("ipu_model.compile_ipu_code", bool, True),
    ("ipu_model.tiles_per_ipu", int, 0),
    ("ipu_model.version", str, "ipu2"),
    ("norms.use_stable_statistics", bool, False),
    ("norms.experimental.distributed_batch_norm_replica_group_size", int, 1),
    ("optimizations.math.fast", bool, False),
    ("optimizations.math.dot_strength", bool, True),
    ("optimizations.prefetch_data_streams", bool, True),
    ("optimizations.combine_embedding_lookups", bool, False),
    ("optimizations.combine_matmuls", bool, False),
    ("optimizations.enable_graph_outlining", bool, True),
    ("optimizations.merge_infeed_io_copies", bool, True),
    ("optimizations.maximum_cross_replica_sum_buffer_size", int, 0),
    ("optimizations.maximum_reduce_scatter_buffer_size", int, 0),
    ("optimizations.maximum_inter_ipu_copies_buffer_size", int, 0),
    ("optimizations.maximum_send_recv_cluster_size", int, 0),
    ("optimizations.maximum_reduce_many_buffer_size", int, 0),
    ("optimizations.maximum_all_gather_buffer_size", int, 0),
    ("optimizations.minimum_remote_tensor_size", int, 128),
    ("optimizations.merge_remote_buffers", MergeRemoteBuffersBehaviour, MergeRemoteBuffersBehaviour.IF_BENEFICIAL),
    ("optimizations.enable_gather_simplifier", bool, True),
    ("optimizations.triangular_solve_expander_block_size", int, 0),
    ("optimizations.cholesky_block_size", int, 0),
    ("optimizations.enable_fast_math", bool, False),
    ("optimizations.enable_dynamic_slice_replacement", bool, True),
    ("scheduling.algorithm", SchedulingAlgorithm, SchedulingAlgorithm.CHOOSE_BEST),
    ("scheduling.maximum_scheduler_lookahead_depth", int, 5),
    ("scheduling.maximum_scheduler_search_space_size", int, 64),
]

GOOD = {
    bool: [True, False],
    int: [0, 7, -1],
    float: [0.0, 0.5],
    str: ["", "ipu2"],
    dict: [{}, {"a": "b"}, {"a": 1}],
    dict[str, str]: [{}, {"a": "b"}],
    SELECTION: [1, [1], (1, 2), [], ()],
    SelectionOrder: list(SelectionOrder),
    DeviceConnectionType: list(DeviceConnectionType),
    MergeRemoteBuffersBehaviour: list(MergeRemoteBuffersBehaviour),
    SchedulingAlgorithm: list(SchedulingAlgorithm),
    StochasticRoundingBehaviour: list(StochasticRoundingBehaviour),
}
"""Values that an option of a type takes."""


class Text(str):
    """A string that is not exactly a string."""


BAD = {
    bool: [1, 0, "True", None],
    int: [True, 1.0, "1", None, [1]],
    float: [1, True, "0.5", None],
    str: [1, None, b"ipu2", ["ipu2"], Text("ipu2")],
    dict: [None, [], "a", [("a", "b")]],
    dict[str, str]: [None, [], {"a": 1}, {1: "a"}, {"a": True}],
    SELECTION: [True, 1.0, "1", None, [True], [1.0], ("1",), {1}, [[1]]],
    SelectionOrder: [0, "AUTO", None, DeviceConnectionType.ALWAYS],
    DeviceConnectionType: [0, "ALWAYS", None, SelectionOrder.AUTO],
    MergeRemoteBuffersBehaviour: [0, True, None],
    SchedulingAlgorithm: [0, "CHOOSE_BEST", None],
    StochasticRoundingBehaviour: [True, False, 1, "ON", None],
}
"""Values that it does not take: the very type is wanted."""
