"""Element-wise chains become one `map` node: one vertex per tile that runs a small expression.

A node's *depth* counts the operations on the longest path to it that cannot be fused. Neighbours of equal shape and
equal depth form one chain; a path that leaves a chain gains depth, so it can never come back: no cycles.

A `map` node's attributes:
    body    tuple of (kernel op, dtype of the operands, dtype of the result, arguments); an argument k >= 0 is input k,
            then result k - len(inputs) of the body; an argument k < 0 is constant -k - 1
    consts  tuple of (dtype, 0-d array)
    dims    for each input, the dimensions of the result that it has (all of them, or fewer when it is broadcast)
    members op_name of each operation of the body
    outs    for each result of the node, its place in the numbering of the arguments
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from ipu_keras.compiler.passes.builder import prune
from ipu_keras.compiler.rounding import ROUND, scope_says
from ipu_keras.graph.elementwise import ELEMENTWISE, kernel_op
from ipu_keras.graph.ir import Graph, Node, Value

MAX_BODY = 256


def _absorbed(value: Value) -> bool:
    """A broadcast whose operand a map can read itself: its dimensions keep their order."""
    node = value.node
    return node.op == "broadcast" and tuple(sorted(node.attrs["dims"])) == node.attrs["dims"]


def _fusible(node: Node) -> bool:
    return node.op in ELEMENTWISE and node.out.size > 0


def _joins(producer: Value, node: Node) -> bool:
    if not (_fusible(node) and _fusible(producer.node) and producer.shape == node.out.shape):
        return False
    # One vertex rounds in one way.
    return _rounding(producer.node) == _rounding(node)


def _rounding(node: Node) -> tuple[Any, ...]:
    return node.attrs.get("common"), scope_says(ROUND, node.where)


def _depths(graph: Graph) -> dict[Node, int]:
    depth: dict[Node, int] = {}
    for node in graph.nodes:
        d = 0
        for value in node.inputs:
            if value.node in depth:
                # An absorbed broadcast is no step of its own.
                d = max(d, depth[value.node] + (0 if _joins(value, node) or _absorbed(value) else 1))
        depth[node] = d
    users = graph.users()
    outputs = set(graph.outputs)
    # A chain's early part waits for the rest of it where all its users are element-wise: fewer, longer chains.
    for node in reversed(graph.nodes):
        if not _fusible(node) or node.out in outputs or node.out not in users:
            continue
        late = min(depth[u] - (0 if _joins(node.out, u) else 1) for u in users[node.out])
        depth[node] = max(depth[node], late)
    return depth


def _groups(graph: Graph, depth: dict[Node, int]) -> dict[Node, int]:
    parent: dict[Node, Node] = {n: n for n in graph.nodes if _fusible(n)}

    def root(node: Node) -> Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node in graph.nodes:
        if node not in parent:
            continue
        for value in node.inputs:
            if _joins(value, node) and depth[value.node] == depth[node]:
                parent[root(node)] = root(value.node)
    # Long chains are cut in topological order, so the pieces still depend one way only.
    number: dict[Node, int] = {}
    current: dict[Node, int] = {}
    sizes: dict[int, int] = {}
    for node in graph.nodes:
        if node not in parent:
            continue
        r = root(node)
        k = current.get(r)
        if k is None or sizes[k] >= MAX_BODY:
            k = len(sizes)
            current[r] = k
            sizes[k] = 0
        sizes[k] += 1
        number[node] = k
    return number


def _make_map(members: list[Node], outside: set[Value]) -> tuple[Node, dict[Value, Value]]:
    inside = {n.out for n in members}
    inputs: list[Value] = []
    dims: list[tuple[int, ...]] = []
    consts: list[tuple[str, np.ndarray]] = []
    place: dict[Any, int] = {}
    shape = members[0].out.shape

    def argument(value: Value) -> None:
        """Number an operand that comes from outside."""
        if value in inside or value in place:
            return
        source, source_dims = value, tuple(range(len(value.shape)))
        if _absorbed(value):
            source, source_dims = value.node.inputs[0], value.node.attrs["dims"]
        if source.node.op == "constant" and source.shape == ():
            key = ("const", source)
            if key not in place:
                consts.append((source.dtype, source.node.attrs["value"]))
                place[key] = -len(consts)
            place[value] = place[key]
            return
        operand = (source, source_dims)
        if operand not in place:
            place[operand] = len(inputs)
            inputs.append(source)
            dims.append(source_dims)
        place[value] = place[operand]

    for node in members:
        for value in node.inputs:
            argument(value)
    body = []
    for i, node in enumerate(members):
        args = tuple(place[v] for v in node.inputs)
        data = node.inputs[1] if node.op in ("select", "clamp") else node.inputs[0]
        body.append((kernel_op(node.op, node.attrs), data.dtype, node.out.dtype, args))
        place[node.out] = len(inputs) + i
    results = [n.out for n in members if n.out in outside]
    # Where most of the chain comes from is where the whole of it is counted; the last says it best for gradients.
    where = next((n.where for n in reversed(members) if n.where), "")
    attrs: dict[str, Any] = {
        "body": tuple(body),
        "consts": tuple(consts),
        "dims": tuple(dims),
        "outs": tuple(place[v] for v in results),
        "members": tuple(n.where or n.op for n in members),
    }
    if members[0].attrs.get("common"):
        attrs["common"] = True
    fused = Node("map", inputs, [(shape, v.dtype) for v in results], attrs, where, members[-1].name)
    return fused, dict(zip(results, fused.results, strict=True))


def fuse(graph: Graph) -> Graph:
    """Group element-wise nodes into `map` nodes and put all nodes in a topological order near the old one."""
    number = _groups(graph, _depths(graph))
    members: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in number:
            members.setdefault(number[node], []).append(node)
    users = graph.users()
    outputs = set(graph.outputs)
    outside: set[Value] = set()
    for node in graph.nodes:
        for value in node.results:
            absorbed = [u for u in users.get(value, ()) if u not in number or number[u] != number.get(node)]
            if absorbed or value in outputs:
                outside.add(value)
    env: dict[Value, Value] = {}
    fused: list[tuple[int, Node]] = []
    place = {n: i for i, n in enumerate(graph.nodes)}
    for nodes in members.values():
        node, results = _make_map(nodes, outside)
        env.update(results)
        fused.append((place[nodes[-1]], node))
    fused.extend((place[n], n) for n in graph.nodes if n not in number)
    new = Graph(graph.name)
    new.params = list(graph.params)
    new.nodes = _sorted(fused, env)
    for node in new.nodes:
        node.inputs = [env.get(v, v) for v in node.inputs]
    new.outputs = [env.get(v, v) for v in graph.outputs]
    return prune(new)


def _sorted(nodes: list[tuple[int, Node]], env: dict[Value, Value]) -> list[Node]:
    """Topological order; among the nodes that are ready the one that stood first goes first."""
    makers = {v: n for _, n in nodes for v in n.results}
    waiting: dict[Node, int] = {}
    users: dict[Node, list[tuple[int, Node]]] = {}
    ready: list[tuple[int, int, Node]] = []
    for i, node in nodes:
        sources = {makers[env.get(v, v)] for v in node.inputs if env.get(v, v) in makers}
        waiting[node] = len(sources)
        for source in sources:
            users.setdefault(source, []).append((i, node))
        if not sources:
            heapq.heappush(ready, (i, id(node), node))
    done = []
    while ready:
        _, _, node = heapq.heappop(ready)
        done.append(node)
        for i, user in users.get(node, ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, (i, id(user), user))
    return done
