"""Each pass on small graphs: what goes in, what comes out, both as text."""

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.compiler import compile_module, passes
from ipu_keras.compiler.passes import run_passes
from ipu_keras.compiler.passes.expand import expand
from ipu_keras.compiler.passes.fuse import MAX_BODY, fuse
from ipu_keras.compiler.passes.simplify import FOLD_LIMIT, simplify
from ipu_keras.errors import GraphError
from ipu_keras.graph.ir import DTYPES, Graph, Node, check, text
from tests.harness import hlo_of


class Make:
    """Builds a graph node by node."""

    def __init__(self):
        self.graph = Graph("test")

    def param(self, *shape, dtype="f32"):
        node = Node("parameter", [], [(shape, dtype)])
        self.graph.params.append(node.out)
        return node.out

    def op(self, op, *inputs, shape=None, dtype=None, **attrs):
        shape = inputs[0].shape if shape is None else shape
        node = Node(op, inputs, [(tuple(shape), dtype or inputs[-1].dtype)], attrs)
        self.graph.nodes.append(node)
        return node.out

    def const(self, value, dtype="f32"):
        array = np.asarray(value, DTYPES[dtype])
        return self.op("constant", shape=array.shape, dtype=dtype, value=array)

    def all(self, value, shape, dtype="f32"):
        return self.op("broadcast", self.const(value, dtype), shape=shape, dims=())

    def region(self, op, *order, **attrs):
        make = Make()
        params = [make.param(), make.param()]
        dtype = "pred" if op == "compare" else "f32"
        make.graph.outputs = [make.op(op, *(params[i] for i in order or (0, 1)), dtype=dtype, **attrs)]
        return make.graph

    def of(self, *outputs):
        self.graph.outputs = list(outputs)
        check(self.graph)
        return self.graph


def after(graph_pass, graph):
    """The graph that a pass leaves, as text; it must be legal."""
    result = graph_pass(graph)
    check(result)
    return text(result)


def lines(expected):
    return "\n".join(line.strip() for line in expected.strip().splitlines())


# ---- constant folding ----


def test_scalars_fold():
    m = Make()
    x = m.op("multiply", m.op("add", m.const(2.0), m.const(3.0)), m.const(4.0))
    assert after(simplify, m.of(x)) == lines("""
        %0 = constant f32[] {'value': 20.0}
        return %0""")


def test_arrays_and_broadcasts_of_constants_fold():
    m = Make()
    line = m.op("add", m.const([1.0, 2.0, 3.0]), m.all(10.0, (3,)))
    assert after(simplify, m.of(line)) == lines("""
        %0 = constant f32[3] {'value': [11.0, 12.0, 13.0]}
        return %0""")
    # Two broadcast scalars stay a broadcast scalar, of any size.
    m = Make()
    both = m.op("maximum", m.all(1.5, (1000, 1000)), m.all(2.5, (1000, 1000)))
    assert after(simplify, m.of(both)) == lines("""
        %0 = constant f32[] {'value': 2.5}
        %1 = broadcast f32[1000, 1000] %0 {'dims': ()}
        return %1""")


def test_large_constants_are_left_to_the_tiles():
    m = Make()
    big = m.const(np.arange(FOLD_LIMIT + 1))
    assert "negate" in after(simplify, m.of(m.op("negate", big)))


def test_reshapes_slices_and_joins_of_constants_fold():
    m = Make()
    array = m.op("reshape", m.const([1.0, 2.0, 3.0, 4.0]), shape=(2, 2))
    row = m.op("slice", array, shape=(1, 2), slices=((1, 2, 1), (0, 2, 1)))
    both = m.op("concatenate", row, array, shape=(3, 2), dims=(0,))
    assert after(simplify, m.of(both)) == lines("""
        %0 = constant f32[3, 2] {'value': [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]}
        return %0""")


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("exponential", "exp"), ("tanh", "tanh"), ("log", "log"), ("logistic", "sigmoid"), ("rsqrt", "rsqrt"),
        ("sine", "sin"), ("erf", "erf"),
    ],
)  # fmt: skip
def test_a_folded_value_has_the_bits_that_the_tiles_compute(op, function, dtype):
    values = np.random.default_rng(3).uniform(0.1, 3, 257).astype(DTYPES[dtype])
    module = hlo_of(lambda x: getattr(tf.math, function)(x), values)[0]
    (ran,) = compile_module(module).run(values)
    m = Make()
    (folded,) = simplify(m.of(m.op(op, m.const(values, dtype)))).nodes
    assert folded.op == "constant"
    assert folded.attrs["value"].tobytes() == ran.tobytes()


# ---- sharing and dead code ----


def test_equal_nodes_are_shared():
    m = Make()
    x, y = m.param(4), m.param(4)
    a, b = m.op("add", x, y), m.op("add", x, y)
    assert after(simplify, m.of(m.op("multiply", m.op("tanh", a), m.op("tanh", b)))) == lines("""
        %0 = parameter f32[4]
        %1 = parameter f32[4]
        %2 = add f32[4] %0 %1
        %3 = tanh f32[4] %2
        %4 = multiply f32[4] %3 %3
        return %4""")


def test_equal_constants_are_shared_by_their_bits():
    m = Make()
    x = m.param(1)
    zeros = [m.const([v]) for v in (0.0, 0.0, -0.0)]
    found = after(simplify, m.of(*(m.op("atan2", x, z) for z in zeros)))
    assert found.count("constant") == 2 and found.count("atan2") == 2


def test_other_attributes_are_other_nodes():
    m = Make()
    x, y = m.param(4), m.param(4)
    less = m.op("compare", x, y, dtype="pred", direction="lt")
    more = m.op("compare", x, y, dtype="pred", direction="gt")
    assert after(simplify, m.of(less, more)).count("compare") == 2


def test_draws_are_never_shared():
    m = Make()
    a, b = (m.op("rng", m.const(0.0), m.const(1.0), shape=(4,), dtype="f32") for _ in range(2))
    assert after(simplify, m.of(a, b)).count(" rng ") == 2


def test_what_no_output_needs_is_dropped():
    m = Make()
    x = m.param(4)
    m.op("exponential", m.op("tanh", x))
    assert after(simplify, m.of(m.op("negate", x))) == lines("""
        %0 = parameter f32[4]
        %1 = negate f32[4] %0
        return %1""")


# ---- algebra ----


@pytest.mark.parametrize(
    ("op", "right", "left"), [("add", 0, True), ("subtract", 0, False), ("multiply", 1, True), ("divide", 1, False)]
)
def test_neutral_operands_vanish(op, right, left):
    m = Make()
    x = m.param(3, 4)
    neutral = m.all(right, (3, 4))
    outs = [m.op(op, x, neutral)] + ([m.op(op, neutral, x)] if left else [])
    assert after(simplify, m.of(*outs)) == lines(f"""
        %0 = parameter f32[3, 4]
        return {" ".join(["%0"] * len(outs))}""")


def test_the_same_operand_on_the_wrong_side_stays():
    m = Make()
    x = m.param(3)
    outs = [m.op("subtract", m.all(0, (3,)), x), m.op("divide", m.all(1, (3,)), x)]
    found = after(simplify, m.of(*outs))
    assert "subtract" in found and "divide" in found


def test_a_square_is_a_product():
    m = Make()
    x = m.param(3)
    assert after(simplify, m.of(m.op("power", x, m.all(2, (3,))), m.op("power", x, m.all(1, (3,))))) == lines("""
        %0 = parameter f32[3]
        %1 = multiply f32[3] %0 %0
        return %1 %0""")


def test_conversions_to_the_same_dtype_vanish():
    m = Make()
    x = m.param(3)
    assert "convert" not in after(simplify, m.of(m.op("convert", x, dtype="f32")))
    m = Make()
    half = m.op("convert", m.op("convert", m.param(3), dtype="f16"), dtype="f32")
    assert after(simplify, m.of(half)).count("convert") == 2  # it rounds


# ---- shapes ----


def test_reshapes_of_reshapes():
    m = Make()
    x = m.param(4, 6)
    back = m.op("reshape", m.op("reshape", x, shape=(24,)), shape=(4, 6))
    assert after(simplify, m.of(back)) == "%0 = parameter f32[4, 6]\nreturn %0"


def test_transposes_of_transposes():
    m = Make()
    x = m.param(2, 3, 4)
    t = m.op("transpose", x, shape=(4, 2, 3), dims=(2, 0, 1))
    u = m.op("transpose", t, shape=(3, 4, 2), dims=(2, 0, 1))
    v = m.op("transpose", u, shape=(2, 3, 4), dims=(2, 0, 1))
    assert after(simplify, m.of(u, v)) == lines("""
        %0 = parameter f32[2, 3, 4]
        %1 = transpose f32[3, 4, 2] %0 {'dims': (1, 2, 0)}
        return %1 %0""")


def test_transposes_of_ones_are_reshapes():
    m = Make()
    x = m.param(1, 5, 1, 7)
    assert after(simplify, m.of(m.op("transpose", x, shape=(5, 1, 7, 1), dims=(1, 0, 3, 2)))) == lines("""
        %0 = parameter f32[1, 5, 1, 7]
        %1 = reshape f32[5, 1, 7, 1] %0
        return %1""")


def test_broadcasts_of_broadcasts():
    m = Make()
    x = m.param(3)
    first = m.op("broadcast", x, shape=(3, 5), dims=(0,))
    second = m.op("broadcast", first, shape=(2, 5, 3), dims=(2, 1))
    assert after(simplify, m.of(second)) == lines("""
        %0 = parameter f32[3]
        %1 = broadcast f32[2, 5, 3] %0 {'dims': (2,)}
        return %1""")


def test_broadcasts_forget_dimensions_of_one():
    m = Make()
    x = m.param(1, 3)
    assert after(simplify, m.of(m.op("broadcast", x, shape=(4, 3), dims=(0, 1)))) == lines("""
        %0 = parameter f32[1, 3]
        %1 = reshape f32[3] %0
        %2 = broadcast f32[4, 3] %1 {'dims': (1,)}
        return %2""")


def test_a_transposed_broadcast_is_a_broadcast():
    m = Make()
    x = m.param(3)
    wide = m.op("broadcast", x, shape=(3, 5), dims=(0,))
    assert after(simplify, m.of(m.op("transpose", wide, shape=(5, 3), dims=(1, 0)))) == lines("""
        %0 = parameter f32[3]
        %1 = broadcast f32[5, 3] %0 {'dims': (1,)}
        return %1""")


def test_slices_pads_and_reversals_of_everything_vanish():
    m = Make()
    x = m.param(1, 4)
    whole = m.op("slice", x, slices=((0, 1, 1), (0, 4, 1)))
    padded = m.op("pad", whole, m.const(0.0), shape=(1, 4), padding=((0, 0, 0), (0, 0, 0)))
    assert after(simplify, m.of(m.op("reverse", padded, dims=(0,)))) == "%0 = parameter f32[1, 4]\nreturn %0"


def test_a_padded_nothing_is_the_edge():
    m = Make()
    x, edge = m.param(0, 2), m.param()
    assert after(simplify, m.of(m.op("pad", x, edge, shape=(3, 2), padding=((1, 2, 0), (0, 0, 0))))) == lines("""
        %0 = parameter f32[0, 2]
        %1 = parameter f32[]
        %2 = broadcast f32[3, 2] %1 {'dims': ()}
        return %2""")


def test_a_slice_at_a_known_place_is_static():
    m = Make()
    x = m.param(5, 4)
    known = m.op("dynamic-slice", x, m.const(9, "s32"), m.const(1, "s32"), shape=(2, 3), dtype="f32", sizes=(2, 3))
    # XLA moves a start so that the slice stays inside: 9 becomes 3.
    assert after(simplify, m.of(known)) == lines("""
        %0 = parameter f32[5, 4]
        %1 = slice f32[2, 3] %0 {'slices': ((3, 5, 1), (1, 4, 1))}
        return %1""")


# ---- products and reductions ----


def test_transposed_operands_of_a_product_are_read_as_they_stand():
    m = Make()
    x, w = m.param(8, 3), m.param(5, 8)
    a = m.op("transpose", x, shape=(3, 8), dims=(1, 0))
    b = m.op("transpose", w, shape=(8, 5), dims=(1, 0))
    dot = m.op("dot", a, b, shape=(3, 5), contract=((1,), (0,)), batch=((), ()))
    assert after(simplify, m.of(dot)) == lines("""
        %0 = parameter f32[8, 3]
        %1 = parameter f32[5, 8]
        %2 = dot f32[3, 5] %0 %1 {'contract': ((0,), (1,)), 'batch': ((), ())}
        return %2""")


def test_a_transpose_that_swaps_free_dimensions_stays():
    m = Make()
    x, w = m.param(4, 3, 8), m.param(8, 5)
    a = m.op("transpose", x, shape=(3, 4, 8), dims=(1, 0, 2))
    dot = m.op("dot", a, w, shape=(3, 4, 5), contract=((2,), (0,)), batch=((), ()))
    assert "transpose" in after(simplify, m.of(dot))


def test_reductions_over_dimensions_of_one():
    m = Make()
    x, start = m.param(4, 1), m.param()
    out = m.op("reduce", x, start, shape=(4,), dims=(1,), region=m.region("add"))
    assert after(simplify, m.of(out)) == lines("""
        %0 = parameter f32[4, 1]
        %1 = parameter f32[]
        %2 = reshape f32[4] %0
        %3 = broadcast f32[4] %1 {'dims': ()}
        %4 = add f32[4] %3 %2
        return %4""")


def test_reductions_over_dimensions_of_one_keep_the_regions_order():
    # acc - x and x - acc are two regions; one that does not use both arguments is no operation on them.
    for order, want in (((0, 1), "%4 = subtract f32[4] %3 %2"), ((1, 0), "%4 = subtract f32[4] %2 %3")):
        m = Make()
        x, start = m.param(4, 1), m.param()
        out = m.op("reduce", x, start, shape=(4,), dims=(1,), region=m.region("subtract", *order))
        assert want in after(simplify, m.of(out))
    m = Make()
    out = m.op("reduce", m.param(4, 1), m.param(), shape=(4,), dims=(1,), region=m.region("add", 1, 1))
    assert " reduce " in after(simplify, m.of(out))


def test_a_start_that_changes_nothing_goes_with_it():
    m = Make()
    out = m.op("reduce", m.param(4, 1), m.const(0.0), shape=(4,), dims=(1,), region=m.region("add"))
    assert after(simplify, m.of(out)) == lines("""
        %0 = parameter f32[4, 1]
        %1 = reshape f32[4] %0
        return %1""")


# ---- shorthand ----


def test_iota_is_a_line_of_numbers():
    m = Make()
    out = m.op("iota", shape=(2, 3), dtype="s32", dims=(1,))
    assert after(expand, m.of(out)) == lines("""
        %0 = constant s32[3] {'value': [0, 1, 2]}
        %1 = broadcast s32[2, 3] %0 {'dims': (1,)}
        return %1""")


def test_scalar_operands_of_select_and_clamp_are_broadcast():
    m = Make()
    p, x, low = m.param(dtype="pred"), m.param(4), m.param()
    chosen = m.op("select", p, x, x, shape=(4,))
    out = m.op("clamp", low, chosen, low, shape=(4,))
    assert after(expand, m.of(out)) == lines("""
        %0 = parameter pred[]
        %1 = parameter f32[4]
        %2 = parameter f32[]
        %3 = broadcast pred[4] %0 {'dims': ()}
        %4 = select f32[4] %3 %1 %1
        %5 = broadcast f32[4] %2 {'dims': ()}
        %6 = clamp f32[4] %5 %4 %5
        return %6""")


# ---- fusion ----


def test_a_chain_is_one_map():
    m = Make()
    x, bias = m.param(4, 3), m.param(3)
    y = m.op("add", x, m.op("broadcast", bias, shape=(4, 3), dims=(1,)))
    y = m.op("multiply", m.op("tanh", y), m.all(2.0, (4, 3)))
    assert after(fuse, m.of(y)) == lines("""
        %0 = parameter f32[4, 3]
        %1 = parameter f32[3]
        %2 = map f32[4, 3] %0 %1 {'body': (('add', 'f32', 'f32', (0, 1)), ('tanh', 'f32', 'f32', (2,)), ('multiply', 'f32', 'f32', (3, -1))), 'consts': (('f32', array(2., dtype=float32)),), 'dims': ((0, 1), (1,)), 'outs': (4,), 'members': ('add', 'tanh', 'multiply')}
        return %2""")  # noqa: E501


def maps(graph):
    fused = fuse(graph)
    check(fused)
    return [(n.op, len(n.attrs["body"]) if n.op == "map" else 0) for n in fused.nodes]


def test_no_cycle_through_an_outside_node():
    # y = x + dot(x): fused with x, the map would need the product of its own result.
    m = Make()
    p, w = m.param(4, 4), m.param(4, 4)
    x = m.op("exponential", p)
    y = m.op("add", x, m.op("dot", x, w, contract=((1,), (0,)), batch=((), ())))
    assert maps(m.of(y)) == [("map", 1), ("dot", 0), ("map", 1)]


def test_no_cycle_through_two_outside_nodes():
    m = Make()
    p, w = m.param(4, 4), m.param(4, 4)
    dot = lambda a: m.op("dot", a, w, contract=((1,), (0,)), batch=((), ()))  # noqa: E731
    x = m.op("exponential", p)
    y = m.op("add", x, dot(x))
    z = m.op("add", m.op("add", x, dot(y)), y)
    found = maps(m.of(z))
    assert [op for op, _ in found] == ["map", "dot", "map", "dot", "map"]
    assert sum(n for _, n in found) == 4


def test_what_waits_for_a_product_joins_what_follows_it():
    # The scale of the second operand does not come in a map of its own before the product.
    m = Make()
    p, q, w = m.param(4, 4), m.param(4, 4), m.param(4, 4)
    scaled = m.op("tanh", q)
    y = m.op("add", m.op("dot", p, w, contract=((1,), (0,)), batch=((), ())), scaled)
    assert maps(m.of(y)) == [("dot", 0), ("map", 2)]


def test_other_shapes_do_not_join():
    m = Make()
    x = m.op("tanh", m.param(4, 3))
    y = m.op("tanh", m.op("reshape", x, shape=(12,)))
    assert maps(m.of(y)) == [("map", 1), ("reshape", 0), ("map", 1)]


def test_several_results_of_a_map():
    m = Make()
    x = m.op("tanh", m.param(4))
    y = m.op("negate", x)
    fused = fuse(m.of(x, y))
    (node,) = fused.nodes
    assert node.attrs["outs"] == (1, 2) and fused.outputs == node.results


def test_long_chains_are_cut():
    m = Make()
    x = m.param(4)
    for _ in range(2 * MAX_BODY + 5):
        x = m.op("negate", x)
    assert maps(m.of(x)) == [("map", MAX_BODY), ("map", MAX_BODY), ("map", 5)]


# ---- the rules of a graph ----


def test_use_before_definition():
    m = Make()
    x = m.op("tanh", m.param(4))
    m.of(m.op("negate", x))
    m.graph.nodes.reverse()
    with pytest.raises(GraphError, match="before it is defined"):
        check(m.graph)


def test_an_output_that_nobody_makes():
    m = Make()
    m.param(4)
    m.graph.outputs = [Node("tanh", [], [((4,), "f32")]).out]
    with pytest.raises(GraphError, match="is not defined"):
        check(m.graph)


@pytest.mark.parametrize("kind", [((4,), "f64"), ((-1,), "f32")])
def test_types_that_no_tile_holds(kind):
    m = Make()
    node = Node("tanh", [m.param(4)], [kind])
    m.graph.nodes.append(node)
    m.graph.outputs = [node.out]
    with pytest.raises(GraphError, match=r"has dtype f64|has shape"):
        check(m.graph)


def test_a_pass_that_breaks_a_graph_is_found_at_once(monkeypatch):
    def broken(graph):
        graph.nodes = graph.nodes[1:]
        return graph

    monkeypatch.setattr(passes, "PASSES", (("broken", broken), ("fuse", fuse)))
    m = Make()
    with pytest.raises(GraphError, match="before it is defined"):
        run_passes(m.of(m.op("negate", m.op("tanh", m.param(4)))))
