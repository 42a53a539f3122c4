"""What torch knows of an operator: names of its arguments, and shapes of its results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from doppler.capture.operators import overload
from doppler.capture.program import Argument, Constant, TensorMeta

Given = dict[str, Argument]


@cache
def pointwise(op: str) -> bool:
    """Whether torch calls an operator elementwise."""
    import torch

    found = overload(op)
    return found is not None and torch.Tag.pointwise in found.tags


@cache
def parameters(op: str) -> tuple[tuple[str, bool, Argument], ...]:
    """Name, whether it is given by name only, and default, of each argument in order."""
    found = overload(op)
    assert found is not None
    return tuple(
        (argument.name, argument.kwarg_only, frozen(argument.default_value))
        for argument in found._schema.arguments
    )


def frozen(value: Any) -> Argument:
    """Write a default of torch as an argument of a program."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def bind(op: str, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> Given:
    """Arguments by name, defaults included."""
    names = parameters(op)
    given = {name: default for name, _, default in names}
    given |= {name: value for (name, _, _), value in zip(names, args, strict=False)}
    return given | dict(kwargs)


def unbind(op: str, given: Given) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
    """Arguments in order and by name, without those that are as by default."""
    args: list[Argument] = []
    kwargs: dict[str, Argument] = {}
    used = 0
    for name, named, default in parameters(op):
        value = given.get(name, default)
        plain = type(value) is type(default) and value == default
        if named:
            if not plain:
                kwargs[name] = value
        else:
            args.append(value)
            used = used if plain else len(args)
    return tuple(args[:used]), kwargs


class ResultShapes:
    """Shapes of what calls return, found by running them on tensors without content, each once."""

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.mode = FakeTensorMode()
        self.known: dict[Any, tuple[TensorMeta, ...] | None] = {}

    def find(
        self, op: str, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]
    ) -> tuple[TensorMeta, ...] | None:
        """Results of a call whose tensors are given as :class:`TensorMeta`.

        Returns
        -------
        tuple of TensorMeta, or None
            None if torch refuses the call.
        """
        key = (op, tagged(args), tuple(sorted((k, tagged(v)) for k, v in kwargs.items())))
        if key not in self.known:
            self.known[key] = self.run(op, args, kwargs)
        return self.known[key]

    def run(
        self, op: str, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]
    ) -> tuple[TensorMeta, ...] | None:
        """Run a call, whatever torch makes of it."""
        import torch

        found = overload(op)
        if found is None:
            return None
        try:
            with self.mode, torch.no_grad():
                result = found(*map(empty, args), **{k: empty(v) for k, v in kwargs.items()})
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, KeyError):
            return None
        results = result if isinstance(result, tuple | list) else (result,)
        if not all(isinstance(part, torch.Tensor) for part in results):
            return None
        return tuple(
            TensorMeta(tuple(map(int, part.shape)), str(part.dtype).removeprefix("torch."))
            for part in results
        )


def tagged(value: Argument) -> Any:
    """Tell 1, 1.0 and True apart, for they mean different things to torch."""
    if isinstance(value, tuple):
        return tuple(map(tagged, value))
    return (type(value).__name__, value)


def empty(value: Argument) -> Any:
    """Write an argument for torch, its tensors without content."""
    import torch

    if isinstance(value, TensorMeta):
        return torch.empty(value.shape, dtype=getattr(torch, value.dtype))
    if isinstance(value, Constant):
        return torch.device("cpu") if value.kind == "device" else getattr(torch, value.name)
    if isinstance(value, tuple):
        return list(map(empty, value))
    return value
