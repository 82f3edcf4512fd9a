"""What happens besides when a model in the scope is built: its calls are known from then on, and looked at."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from ipu_keras.keras.pipeline import adapter
from ipu_keras.keras.pipeline.build import recorded
from ipu_keras.keras.pipeline.calls import record

__all__ = ["Build"]


class Build:
    """The attribute ``build`` of a model's class.

    Keras gives each layer a ``build`` of its own, in its ``__dict__``; an attribute of the class that has a setter
    comes before that.
    """

    def __init__(self, base: Any) -> None:
        self._base = base  # for access through the class

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self._base
        own = model.__dict__.get("build") or self._base.__get__(model, owner)
        if adapter.kind_of(model) == "model":
            return _traceable(model, own)
        return _checked(model, own)

    def __set__(self, model: Any, value: Any) -> None:
        model.__dict__["build"] = value

    def __delete__(self, model: Any) -> None:
        del model.__dict__["build"]


def _traceable(model: Any, own: Any) -> Any:
    """A subclassed model may be built of symbolic tensors, which say dtypes, too."""

    @functools.wraps(own)
    def build(*args: Any, **kwargs: Any) -> Any:
        if not adapter.has_symbolic((args, kwargs)):
            model.__dict__.pop("_ipu_inputs", None)
            _trace_first(model, args, kwargs)
            return own(*args, **kwargs)
        kwargs = {name.removesuffix("_shape"): value for name, value in kwargs.items()}
        if "input" in kwargs and not args:
            args = (kwargs.pop("input"),)
        record(model, *args, **kwargs)
        model.__dict__["_ipu_inputs"] = (args, kwargs)
        return None

    return build


def _trace_first(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A model without a `build` of its own is built by a trace; Keras would leave its layers without weights."""
    shapes = args[0] if len(args) == 1 else kwargs.get("input_shape")
    if shapes is None or not adapter.is_unbuilt(model):
        return
    for dtype in ("float32", "int32"):
        # What cannot be traced is left to Keras, which says so.
        with contextlib.suppress(Exception):
            record(model, adapter.symbolic(shapes, dtype))
            return


def _checked(model: Any, own: Any) -> Any:
    """A model of which some layers have a stage and others have none is refused when it is made."""

    @functools.wraps(own)
    def build(*args: Any, **kwargs: Any) -> Any:
        with adapter.building() as outermost:
            result = own(*args, **kwargs)
        if outermost:  # a Sequential model has a Functional one inside, which is not what the user knows
            recorded(model, ordered=False)
        return result

    return build
