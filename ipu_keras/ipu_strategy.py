"""The strategy under the name of its module in the IPU API."""

from __future__ import annotations

from ipu_keras.keras.strategy import IPUStrategy, IPUStrategyV1

__all__ = ["IPUStrategy", "IPUStrategyV1"]
