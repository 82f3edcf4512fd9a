"""What a program costs: cycles by step, layer and phase; bytes by tile and category. Needs no run."""

from __future__ import annotations

from ipu_keras.profile.cycles import StepCycles
from ipu_keras.profile.layers import LayerCost
from ipu_keras.profile.liveness import Category, Liveness
from ipu_keras.profile.memory import MemoryReport, largest_on_tile
from ipu_keras.profile.report import Profile, profile
from ipu_keras.profile.vertices import VertexType

__all__ = [
    "Category",
    "LayerCost",
    "Liveness",
    "MemoryReport",
    "Profile",
    "StepCycles",
    "VertexType",
    "largest_on_tile",
    "profile",
]
