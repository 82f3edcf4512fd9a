"""A serialized HloModuleProto becomes a Graph: calls inlined, tuples dissolved, every unsupported thing collected.

TensorFlow's bundled proto classes are not a public API; this file is the only one that touches them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.errors import UnsupportedError
from ipu_keras.graph.complex import COMPLEX, FFT_KINDS, FLAT, Pair, complex_node
from ipu_keras.graph.ir import DTYPES, Graph, Node, Value
from ipu_keras.graph.order import total_order_key

BATCHING_DIMS = {
    "gather": ("operand_batching_dims", "start_indices_batching_dims"),
    "scatter": ("input_batching_dims", "scatter_indices_batching_dims"),
}

ALIASES = {"copy", "opt-barrier", "copy-start", "copy-done", "domain", "add-dependency"}
OWN_CALLS = "ipu_keras."
"""Prefix of the targets of custom calls that this project's front end writes."""

COLLECTIVES = {
    "all-reduce",
    "all-gather",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "reduce-scatter",
}
"""Of one replica each of them gives back what it gets."""


def _pb() -> tuple[Any, Any]:
    try:
        from tensorflow.compiler.xla import xla_data_pb2
        from tensorflow.compiler.xla.service import hlo_pb2
    except ImportError as error:  # a TensorFlow that moved the protos
        raise UnsupportedError(f"this TensorFlow does not ship the HLO protos: {error}") from error
    return hlo_pb2, xla_data_pb2


class _Importer:
    def __init__(self, module: Any, data_pb2: Any, replicas: int = 1) -> None:
        self.replicas = replicas
        self.types = {v.number: v.name.lower() for v in data_pb2.PrimitiveType.DESCRIPTOR.values}
        self.computations = {c.id: c for c in module.computations}
        self.entry = module.entry_computation_id
        self.graph = Graph(module.name)
        self.regions: dict[int, Graph] = {}
        self.unsupported: list[tuple[str, str]] = []
        self.wide: set[int] = set()  # constants of f64

    def refuse(self, what: str, instruction: Any) -> None:
        """Note something that no tile can hold, and the op_name that says where it comes from."""
        text = f"{what} {instruction.opcode} {instruction.name}".strip()
        self.unsupported.append((text, instruction.metadata.op_name))

    def typed(self, shape: Any, instruction: Any) -> tuple[tuple[int, ...], str]:
        dtype = self.types[shape.element_type]
        dims = tuple(shape.dimensions)
        if dtype == "f64" and instruction.opcode == "constant":
            return dims, "f32"  # XLA writes some f32 constants as f64 ones and a convert; see `node`
        if dtype not in DTYPES:
            self.refuse(f"dtype {dtype} of", instruction)
            dtype = "f32"
        if any(shape.is_dynamic_dimension):
            self.refuse("dynamic shape of", instruction)
        return dims, dtype

    def region(self, computation_id: int) -> Graph:
        if computation_id not in self.regions:
            graph = Graph(self.computations[computation_id].name)
            self.body(computation_id, None, graph)
            self.regions[computation_id] = graph
        return self.regions[computation_id]

    def body(self, computation_id: int, arguments: list[Any] | None, graph: Graph) -> Any:
        """Append a computation to `graph`; without arguments its parameters become the graph's."""
        computation = self.computations[computation_id]
        env: dict[int, Any] = {}
        parameters: dict[int, Any] = {}
        # Parameters first: their order is their number, wherever they stand in the text.
        for instruction in sorted(
            (i for i in computation.instructions if i.opcode == "parameter"), key=lambda i: i.parameter_number
        ):
            if arguments is not None:
                parameters[instruction.id] = arguments[instruction.parameter_number]
            else:
                parameters[instruction.id] = self.parameter(instruction.shape, instruction, graph)
        for instruction in computation.instructions:
            op = instruction.opcode
            inputs = [env[i] for i in instruction.operand_ids]
            if op == "parameter":
                env[instruction.id] = parameters[instruction.id]
            elif op == "tuple":
                self.refuse_wide(instruction)
                env[instruction.id] = inputs
            elif op == "get-tuple-element":
                env[instruction.id] = inputs[0][instruction.tuple_index]
            elif op in ALIASES:
                env[instruction.id] = inputs[0]
            elif op in COLLECTIVES and self.replicas == 1 and self.same_shapes(instruction.shape, inputs):
                env[instruction.id] = inputs[0] if len(inputs) == 1 else inputs
            elif op == "call":
                env[instruction.id] = self.body(instruction.called_computation_ids[0], inputs, graph)
            else:
                env[instruction.id] = self.node(instruction, inputs, graph)
        if computation.root_id in self.wide:
            self.unsupported.append((f"dtype f64 of the result of {computation.name}", ""))
        root = env[computation.root_id]
        if arguments is None and computation_id == self.entry and _has_pair(root):
            self.unsupported.append((f"dtype {COMPLEX} of a result of {computation.name}", ""))
        if arguments is None:
            graph.outputs = _flatten([root])
        return root

    def parameter(self, shape: Any, instruction: Any, graph: Graph) -> Any:
        if self.types[shape.element_type] == "tuple":
            return [self.parameter(s, instruction, graph) for s in shape.tuple_shapes]
        if self.types[shape.element_type] == COMPLEX and graph is not self.graph:
            parts = [Node("parameter", [], [(tuple(shape.dimensions), "f32")], name=instruction.name) for _ in "ri"]
            graph.params += [part.out for part in parts]
            return Pair(part.out for part in parts)
        node = Node("parameter", [], [self.typed(shape, instruction)], name=instruction.name)
        graph.params.append(node.out)
        return node.out

    def node(self, instruction: Any, inputs: list[Any], graph: Graph) -> Any:
        shape = instruction.shape
        is_tuple = self.types[shape.element_type] == "tuple"
        if self.types[shape.element_type] in ("token", "opaque_type"):
            self.refuse("", instruction)
            return inputs[0] if inputs else Node("token", [], [((), "pred")]).out
        own = instruction.custom_call_target.startswith(OWN_CALLS)
        if instruction.opcode == "custom-call" and instruction.custom_call_has_side_effect and not own:
            self.refuse(f"the effects of {instruction.custom_call_target} in", instruction)
        shapes = _leaves(shape, self.types) if is_tuple else [shape]
        flat = _flatten(inputs)
        if instruction.opcode == "partition-id" or (instruction.opcode == "replica-id" and self.replicas == 1):
            node = Node("constant", [], [((), "u32")], {"value": np.zeros((), np.uint32)}, name=instruction.name)
            graph.nodes.append(node)
            return node.out
        if instruction.opcode == "constant" and self.types[shape.element_type] == "f64":
            self.wide.add(instruction.id)
        elif instruction.opcode != "convert" or self.types[shape.element_type] != "f32":
            self.refuse_wide(instruction)
        complex_result = self.types[shape.element_type] == COMPLEX
        attrs = {} if complex_result and instruction.opcode == "constant" else self.attributes(instruction)
        if complex_result or any(isinstance(v, Pair) for v in inputs):
            made = self.complex(instruction, inputs, attrs, graph)
            if made is not None:
                return made
        if instruction.opcode == "compare" and instruction.comparison_type == "TOTALORDER":
            flat = [total_order_key(graph, value) for value in flat]
        node = Node(
            instruction.opcode,
            flat,
            [t for s in shapes for t in self.types_of(s, instruction)],
            attrs,
            where=instruction.metadata.op_name,
            name=instruction.name,
        )
        graph.nodes.append(node)
        return _nested(shape, self.types, iter(node.results)) if is_tuple else node.out

    def groups(self, instruction: Any) -> tuple[tuple[int, ...], ...]:
        """The groups of replicas of a collective; empty for all in one."""
        listed = instruction.collective_device_list.replica_groups or instruction.replica_groups
        return tuple(tuple(group.replica_ids) for group in listed)

    def same_shapes(self, shape: Any, inputs: list[Any]) -> bool:
        """Whether a collective gives arrays of the shapes that it takes: then it is one of a single replica."""
        return [tuple(s.dimensions) for s in _leaves(shape, self.types)] == [v.shape for v in _flatten(inputs)]

    def types_of(self, shape: Any, instruction: Any) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of the values that an array of this shape is: two if it is complex."""
        if self.types[shape.element_type] == COMPLEX and instruction.opcode in FLAT:
            return [(tuple(shape.dimensions), "f32")] * 2
        # `typed` refuses a complex array that no rule takes; it still counts as two values.
        return [self.typed(shape, instruction)] * (2 if self.types[shape.element_type] == COMPLEX else 1)

    def complex(self, instruction: Any, inputs: list[Any], attrs: dict[str, Any], graph: Graph) -> Any:
        """An instruction on complex numbers, or None where the general way serves."""
        if instruction.opcode in FLAT:
            if self.types[instruction.shape.element_type] != COMPLEX:
                return None
            flat, types = _flatten(inputs), self.types_of(instruction.shape, instruction)
            node = Node(
                instruction.opcode, flat, types, attrs, where=instruction.metadata.op_name, name=instruction.name
            )
            graph.nodes.append(node)
            return Pair(node.results)
        shape = tuple(instruction.shape.dimensions)
        if instruction.opcode == "constant":
            raw = np.array(instruction.literal.c64s, np.float32).reshape(-1, 2)
            parts = [
                Node("constant", [], [(shape, "f32")], {"value": _row_major(raw[:, i], instruction.shape)})
                for i in (0, 1)
            ]
            graph.nodes += parts
            return Pair(part.out for part in parts)
        return complex_node(
            instruction.opcode, inputs, shape, attrs, (graph, instruction.metadata.op_name, instruction.name)
        )

    def refuse_wide(self, instruction: Any) -> None:
        """An f64 constant may only become f32 at once."""
        if self.wide.intersection(instruction.operand_ids):
            self.refuse("dtype f64 of an operand of", instruction)

    def attributes(self, i: Any) -> dict[str, Any]:
        op = i.opcode
        attrs: dict[str, Any] = {}
        if op == "constant":
            attrs["value"] = self.literal(i)
        elif op in ("broadcast", "reverse", "concatenate", "iota", "transpose", "reduce", "sort", "set-dimension-size"):
            attrs["dims"] = tuple(i.dimensions)
        elif op == "slice":
            attrs["slices"] = tuple((d.start, d.limit, d.stride) for d in i.slice_dimensions)
        elif op == "pad":
            attrs["padding"] = tuple(
                (d.edge_padding_low, d.edge_padding_high, d.interior_padding) for d in i.padding_config.dimensions
            )
        elif op == "compare":
            attrs["direction"] = i.comparison_direction.lower()
        elif op == "dot":
            n = i.dot_dimension_numbers
            attrs["contract"] = (tuple(n.lhs_contracting_dimensions), tuple(n.rhs_contracting_dimensions))
            attrs["batch"] = (tuple(n.lhs_batch_dimensions), tuple(n.rhs_batch_dimensions))
        elif op == "convolution":
            n = i.convolution_dimension_numbers
            attrs["lhs"] = (n.input_batch_dimension, n.input_feature_dimension, *n.input_spatial_dimensions)
            attrs["rhs"] = (
                n.kernel_output_feature_dimension,
                n.kernel_input_feature_dimension,
                *n.kernel_spatial_dimensions,
            )
            attrs["out"] = (n.output_batch_dimension, n.output_feature_dimension, *n.output_spatial_dimensions)
            attrs["groups"], attrs["batch_groups"] = max(i.feature_group_count, 1), max(i.batch_group_count, 1)
        elif op in ("gather", "scatter"):
            n = i.gather_dimension_numbers if op == "gather" else i.scatter_dimension_numbers
            # TensorFlow 2.16's protos do not know batching dimensions yet.
            attrs.update(dict.fromkeys(BATCHING_DIMS[op], ()))
            attrs.update({f.name: _plain(getattr(n, f.name)) for f in n.DESCRIPTOR.fields})
            attrs["slice_sizes"] = tuple(i.gather_slice_sizes)
        elif op == "dynamic-slice":
            attrs["sizes"] = tuple(i.dynamic_slice_sizes)
        elif op == "fft":
            attrs["kind"], attrs["lengths"] = FFT_KINDS[i.fft_type], tuple(i.fft_length)
        elif op == "cholesky":
            attrs["lower"] = bool(i.cholesky_options.lower)
        elif op == "triangular-solve":
            o = i.triangular_solve_options
            attrs["left"], attrs["lower"], attrs["unit"] = o.left_side, o.lower, o.unit_diagonal
            attrs["transposed"] = o.transpose_a > 1
        elif op == "reduce-precision":
            attrs["exponent"], attrs["mantissa"] = i.exponent_bits, i.mantissa_bits
        elif op == "topk":
            attrs["k"], attrs["largest"] = i.k, i.largest
        elif op == "rng":
            attrs["distribution"] = int(i.distribution)
        elif op == "get-dimension-size":
            attrs["dims"] = tuple(i.dimensions)
        elif op == "rng-bit-generator":
            attrs["algorithm"] = int(i.rng_algorithm)
        elif op == "custom-call":
            attrs["target"], attrs["config"] = i.custom_call_target, i.backend_config.decode("utf-8", "replace")
        elif op == "all-reduce":
            attrs["region"] = self.region(i.called_computation_ids[0])
            attrs["groups"] = self.groups(i)
        elif op in ("batch-norm-training", "batch-norm-inference", "batch-norm-grad"):
            attrs["epsilon"], attrs["feature"] = i.epsilon, i.feature_index
        if i.HasField("window"):
            attrs["window"] = tuple(
                (
                    d.size,
                    d.stride,
                    d.padding_low,
                    d.padding_high,
                    max(d.window_dilation, 1),
                    max(d.base_dilation, 1),
                    bool(d.window_reversal),
                )
                for d in i.window.dimensions
            )
        if i.called_computation_ids:
            attrs["region"] = self.region(i.called_computation_ids[0])
            if len(i.called_computation_ids) > 1:
                attrs["regions"] = tuple(self.region(c) for c in i.called_computation_ids)
        return attrs

    def literal(self, i: Any) -> np.ndarray:
        dims, dtype = self.typed(i.shape, i)
        if self.types[i.shape.element_type] == "f64":
            flat = np.array(i.literal.f64s, np.float64).astype(np.float32)
            return flat.reshape(dims)
        literal, np_dtype = i.literal, DTYPES[dtype]
        if self.types[i.shape.element_type] not in DTYPES:
            return np.zeros(dims, np_dtype)
        packed = {"f16": "f16s", "s8": "s8s", "u8": "u8s", "s16": "s16s", "u16": "u16s"}
        if dtype in packed:
            flat = np.frombuffer(getattr(literal, packed[dtype]), np_dtype)
        else:
            flat = np.array(getattr(literal, {"pred": "preds"}.get(dtype, dtype + "s")), np_dtype)
        return _row_major(flat, i.shape)


def _row_major(flat: np.ndarray, shape: Any) -> np.ndarray:
    """A literal's elements, which stand in the order of its layout, as an array."""
    dims, order = tuple(shape.dimensions), tuple(shape.layout.minor_to_major)
    if order and order != tuple(reversed(range(len(dims)))):
        major = tuple(reversed(order))
        return np.ascontiguousarray(flat.reshape([dims[d] for d in major]).transpose(np.argsort(major)))
    return np.array(flat.reshape(dims), order="C")  # ascontiguousarray would make a scalar a vector


def _has_pair(value: Any) -> bool:
    return isinstance(value, Pair) or (isinstance(value, list) and any(_has_pair(v) for v in value))


def _leaves(shape: Any, types: dict[int, str]) -> list[Any]:
    """The array shapes in a tuple shape, depth first."""
    if types[shape.element_type] != "tuple":
        return [shape]
    return [leaf for part in shape.tuple_shapes for leaf in _leaves(part, types)]


def _nested(shape: Any, types: dict[int, str], values: Any) -> Any:
    """Values in the structure of a tuple shape."""
    if types[shape.element_type] != "tuple":
        first = next(values)
        return Pair([first, next(values)]) if types[shape.element_type] == COMPLEX else first
    return [_nested(part, types, values) for part in shape.tuple_shapes]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, int) else tuple(int(v) for v in value)


def canonical(serialized: bytes) -> bytes:
    """What a module computes, in the same bytes whichever process wrote it: entries of maps in order, and no names of
    the module and its computations, which TensorFlow numbers as it makes them.

    Args:
        serialized: bytes of an `HloModuleProto`; others come back as they are.
    """
    module = _pb()[0].HloModuleProto()
    try:
        module.ParseFromString(serialized)
    except Exception:  # the import says what is wrong with them
        return serialized
    module.name = module.entry_computation_name = ""
    for computation in module.computations:
        computation.name = ""
    ordered: bytes = module.SerializeToString(deterministic=True)
    return ordered


def import_module(serialized: bytes, replicas: int = 1) -> tuple[Graph, list[tuple[str, str]]]:
    """Read an HLO module.

    Args:
        serialized: bytes of an `HloModuleProto`.
        replicas: on how many the module runs: of one, a collective gives back what it gets.

    Returns:
        The entry computation as a Graph, and a list of what no tile can hold (dtypes, dynamic shapes, tokens),
        each with the op_name that it has.

    Raises:
        UnsupportedError: the bytes are not an HLO module.
    """
    hlo_pb2, data_pb2 = _pb()
    module = hlo_pb2.HloModuleProto()
    try:
        module.ParseFromString(bytes(serialized))
    except Exception as error:
        raise UnsupportedError(f"these bytes are not a serialized HloModuleProto: {error}") from error
    if not module.computations:
        raise UnsupportedError("these bytes are not a serialized HloModuleProto: no computation in them")
    importer = _Importer(module, data_pb2, replicas)
    graph = importer.graph
    try:
        importer.body(module.entry_computation_id, None, graph)
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UnsupportedError(f"not a well-formed HLO module: {error!r}") from error
    return graph, importer.unsupported


def _flatten(values: Any) -> list[Value]:
    out: list[Value] = []
    for value in values:
        out.extend(_flatten(value) if isinstance(value, list) else [value])
    return out
