"""Which Keras layer an HLO instruction or an entry parameter belongs to, as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["LayerNames", "stage_token", "token"]

# TensorFlow makes a scope's name unique by a suffix "_1": the token ends in a dot, so the suffix can be told from it.
_TOKEN = re.compile(r"(?:^|/)(IPU\.\d+\.)(?:_\d+)?(?=/|$)")
_STAGE = re.compile(r"(?:^|/)IPUSTAGE\.(\d+)\.(?:_\d+)?(?=/|$)")


def stage_token(stage: int) -> str:
    """Name of the name scope in which a layer of this pipeline stage is called.

    Args:
        stage: number of the stage.
    """
    return f"IPUSTAGE.{stage}."


def token(number: int) -> str:
    """Name of the name scope with this number, such as ``IPU.12.``.

    Args:
        number: a number that is unique in one trace.
    """
    return f"IPU.{number}."


@dataclass
class LayerNames:
    """Names for reports: from ``metadata.op_name`` of an instruction, or a parameter, to the Keras layer.

    Args:
        scopes: token of a name scope -> path of the layer, for example ``"sequential/dense_1"``. The loss, the metrics
            and the optimizer have the paths ``"loss"``, ``"metrics/accuracy"`` and ``"optimizer"``.
        variables: entry-parameter index -> (path of the variable, path of the layer that owns it). An optimizer's
            slot belongs to the layer of the variable that it is for.

    Example:
        >>> names = LayerNames({"IPU.1.": "sequential/dense"})
        >>> names.locate("gradient_tape/IPU.1./sequential_1/dense_1/MatMul")
        ('sequential/dense', 'backward')
    """

    scopes: dict[str, str] = field(default_factory=dict)
    variables: dict[int, tuple[str, str]] = field(default_factory=dict)

    def locate(self, op_name: str) -> tuple[str, str] | None:
        """Layer and direction of an instruction.

        Args:
            op_name: ``metadata.op_name`` of the HLO instruction.

        Returns:
            (path of the layer, ``"forward"`` or ``"backward"``), or None when the name says nothing, as for the sums
            of gradients that TensorFlow names ``AddN``.
        """
        found = _TOKEN.findall(op_name)
        for name in reversed(found):
            path = self.scopes.get(name)
            if path is not None:
                return path, "backward" if "gradient_tape" in op_name else "forward"
        return None

    def stage(self, op_name: str) -> int | None:
        """Pipeline stage of an instruction, None when its name does not say one.

        Args:
            op_name: ``metadata.op_name`` of the HLO instruction.

        Example:
            >>> LayerNames().stage("gradient_tape/IPUSTAGE.2./IPU.1./dense/MatMul")
            2
        """
        found = _STAGE.findall(op_name)
        return int(found[-1]) if found else None
