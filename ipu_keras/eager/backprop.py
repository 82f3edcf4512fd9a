"""Tapes and contexts that capture gradients, under the name of their module in the IPU API."""

from __future__ import annotations

from ipu_keras.ops._capture import GradientCaptureContext, GradientCaptureTape

__all__ = ["GradientCaptureContext", "GradientCaptureTape"]
