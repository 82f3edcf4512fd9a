"""Names for reports and messages: which layer and phase an instruction belongs to."""

from __future__ import annotations

import re
from typing import Any

from ipu_keras.graph.ir import Node

_OWN_SCOPE = re.compile(r"IPU(STAGE|ROUND|PARTIALS|CALLED)?\.\d+\.(_\d+)?/")
"""Name scopes that the front end opens at each layer call (the layer's path says the same in words), and those of
`ipu_keras.scopes`."""


class Names:
    """Labels: which layer and phase a node belongs to."""

    def __init__(self, layers: Any) -> None:
        self.layers = layers
        self.param_layer: dict[int, tuple[str, str]] = dict(getattr(layers, "variables", {}) or {})

    def locate(self, where: str) -> tuple[str, str]:
        """(layer path, phase) of an instruction's op_name."""
        if self.layers is not None and where:
            found = self.layers.locate(where)
            if found is not None:
                return str(found[0]), str(found[1])
        phase = "backward" if where.startswith("gradient_tape") else "forward"
        return "", phase

    def stage(self, where: str) -> int | None:
        """The pipeline stage that an instruction's op_name says."""
        found: int | None = self.layers.stage(where) if hasattr(self.layers, "stage") and where else None
        return found

    def place(self, node: Node) -> str:
        """For messages: layer and op_name."""
        return self.place_of(node.where)

    def place_of(self, op_name: str) -> str:
        """The same for an instruction's op_name."""
        layer, _ = self.locate(op_name)
        where = _OWN_SCOPE.sub("", op_name)
        return f"layer {layer}, {where}" if layer else where or "no name"

    def label(self, node: Node) -> str:
        """`layer|phase|op name`, the text behind a step's label number."""
        layer, phase = self.locate(node.where)
        return f"{layer}|{phase}|{node.where or node.op}"
