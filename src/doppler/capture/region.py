"""Modules that are kept whole: one op each, whatever they do inside."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from doppler.checks import check_type
from doppler.errors import CaptureError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.utils._pytree import TreeSpec

_regions: WeakValueDictionary[str, Any] = WeakValueDictionary()
_numbers = itertools.count()


def region(module: Module) -> Module:
    """Keep a module whole: to a capture it is one operator, and nothing is looked into.

    For modules whose steps depend on the values of tensors, or that call operators without a fake
    implementation. Put the result in the place of the module: it has the module's parameters, under
    one more name (``inner``), and computes the same.

    To learn the shapes of what it returns, a capture runs the module once, on zeros of the shapes
    of its inputs. Shapes must follow from those. A training step cannot contain it.

    Parameters
    ----------
    module : torch.nn.Module
        Takes and returns tensors, and tuples, lists and dicts of them.

    Returns
    -------
    torch.nn.Module

    Examples
    --------
    >>> model.router = region(model.router)  # doctest: +SKIP
    """
    import torch

    check_type(module, torch.nn.Module, "region: module", CaptureError)
    whole: Module = _class()(module)
    return whole


@cache
def _class() -> Any:
    import torch
    from torch.utils import _pytree as pytree

    operator = _operator()

    class Region(torch.nn.Module):
        def __init__(self, inner: Module) -> None:
            super().__init__()
            self.inner = inner
            self.key = f"{type(inner).__name__}-{next(_numbers)}"
            self.shapes: dict[Any, _Results] = {}
            _regions[self.key] = self

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            for leaf in leaves:
                check_type(leaf, torch.Tensor, f"region {self.key}: an argument", CaptureError)
            state = self.state()
            self.arguments = spec
            flat = operator([*state.values(), *leaves], self.key)
            return pytree.tree_unflatten(list(flat), self.results)

        def state(self) -> dict[str, Tensor]:
            return {**dict(self.inner.named_parameters()), **dict(self.inner.named_buffers())}

        def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
            names = list(self.state())
            state = dict(zip(names, tensors[: len(names)], strict=True))
            args, kwargs = pytree.tree_unflatten(list(tensors[len(names) :]), self.arguments)
            with torch.no_grad():
                found = torch.func.functional_call(self.inner, state, args, kwargs)
            leaves, self.results = pytree.tree_flatten(found)
            # What an operator returns shares no memory with what it was given.
            given = {id(tensor) for tensor in tensors}
            return [
                leaf.clone() if id(leaf) in given or leaf._is_view() else leaf for leaf in leaves
            ]

        def metas(self, tensors: Sequence[Tensor]) -> _Results:
            from torch._subclasses.fake_tensor import unset_fake_temporarily

            key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
            if key not in self.shapes:
                with unset_fake_temporarily():
                    zeros = [torch.zeros(shape, dtype=dtype) for shape, dtype in key]
                    found = self.run(zeros)
                self.shapes[key] = _Results(
                    tuple((tuple(each.shape), each.dtype) for each in found), self.results
                )
            self.results = self.shapes[key].structure
            return self.shapes[key]

    return Region


@dataclass(frozen=True)
class _Results:
    metas: tuple[tuple[tuple[int, ...], Any], ...]
    structure: TreeSpec


@cache
def _operator() -> Any:
    """Register the operator that calls regions by their keys."""
    import torch

    def run(tensors: Sequence[torch.Tensor], key: str) -> list[torch.Tensor]:
        found = _regions.get(key)
        if found is None:
            raise CaptureError(f"region {key!r} is not in this process: capture the model anew")
        results: list[torch.Tensor] = found.run(tensors)
        return results

    def fake(tensors: Sequence[torch.Tensor], key: str) -> list[torch.Tensor]:
        device = tensors[0].device if tensors else torch.device("cpu")
        return [
            torch.empty(shape, dtype=dtype, device=device)
            for shape, dtype in _regions[key].metas(tensors).metas
        ]

    operator = torch.library.custom_op(
        "doppler::region", run, mutates_args=(), schema="(Tensor[] tensors, str key) -> Tensor[]"
    )
    operator.register_fake(fake)
    return operator
