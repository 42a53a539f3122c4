"""The module that :func:`doppler.region` makes, and the operator that calls it. Imports torch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from doppler.errors import CaptureError
from doppler.messages import shown_value

_regions: WeakValueDictionary[str, Region] = WeakValueDictionary()
_numbers = itertools.count()

# Shape and dtype of a tensor.
_Meta = tuple[tuple[int, ...], torch.dtype]


class _Tensor:
    """Stands for a tensor among plain values."""

    def __repr__(self) -> str:
        return "a tensor"


_TENSOR = _Tensor()


@dataclass(frozen=True)
class _Form:
    """A structure of tensors and plain values."""

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, value: Any) -> tuple[_Form, list[Tensor]]:
        leaves, spec = pytree.tree_flatten(value)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        plain = (_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return cls(spec, tuple(plain)), tensors

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        given = iter(tensors)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass
class _Site:
    """A way in which a region is called, and what it returns for each shape of its tensors."""

    arguments: _Form
    results: dict[tuple[_Meta, ...], tuple[_Form, tuple[_Meta, ...]]] = field(default_factory=dict)


class _Sites:
    """The sites of a region. An object of its own: a capture undoes what it sees of changes."""

    def __init__(self) -> None:
        self.known: list[_Site] = []

    def number(self, arguments: _Form) -> int:
        for number, site in enumerate(self.known):
            if site.arguments == arguments:
                return number
        self.known.append(_Site(arguments))
        return len(self.known) - 1


class Region(torch.nn.Module):
    """A module that is one operator to a capture; see :func:`doppler.region`."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._register()

    def _register(self) -> None:
        self._key = f"{type(self.inner).__name__}-{next(_numbers)}"
        self._sites = _Sites()
        _regions[self._key] = self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_sites"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__(dict(state))  # type: ignore[no-untyped-call]
        self._register()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; in a capture, the operator that stands for it."""
        if not torch.compiler.is_exporting() or torch.compiler.is_dynamo_compiling():
            return self.inner(*args, **kwargs)
        form, given = _Form.of((args, kwargs))
        tensors = [*self._state().values(), *given]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise CaptureError(
                f"region {self._key}: has no gradient, so that a training step cannot contain it; "
                "call it under torch.no_grad(), or leave the region out and mend what it is for"
            )
        number = self._sites.number(form)
        flat = _operator(tensors, f"{self._key}#{number}")
        results, _ = self.results(number, tensors)
        return results.filled(flat)

    def results(self, number: int, tensors: Sequence[Tensor]) -> tuple[_Form, tuple[_Meta, ...]]:
        """Learn what the module returns for tensors of such shapes, by a run on zeros."""
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        site, metas = self._sites.known[number], tuple(map(_meta, tensors))
        if metas not in site.results:
            with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
                zeros = [torch.zeros(shape, dtype=dtype) for shape, dtype in metas]
                form, found = self._compute(site, zeros)
            site.results[metas] = form, tuple(map(_meta, found))
        return site.results[metas]

    def run(self, number: int, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Compute what the operator returns.

        Raises
        ------
        CaptureError
            If that is not as it was captured.
        """
        form, found = self._compute(self._sites.known[number], tensors)
        captured, metas = self.results(number, tensors)
        if form != captured or tuple(map(_meta, found)) != metas:
            raise CaptureError(
                f"region {self._key}: returns {_described(form, map(_meta, found))}, and returned "
                f"{_described(captured, metas)} for zeros; what it returns must follow from the "
                "shapes of its inputs"
            )
        return found

    def _state(self) -> dict[str, Tensor]:
        return {**dict(self.inner.named_parameters()), **dict(self.inner.named_buffers())}

    def _compute(self, site: _Site, tensors: Sequence[Tensor]) -> tuple[_Form, list[Tensor]]:
        names = list(self._state())
        args, kwargs = site.arguments.filled(tensors[len(names) :])
        versions = list(map(_version, tensors))
        with torch.no_grad():
            state = dict(zip(names, tensors, strict=False))
            form, found = _Form.of(torch.func.functional_call(self.inner, state, args, kwargs))
        labels = [*names, *(f"argument {at}" for at in range(len(tensors) - len(names)))]
        for label, tensor, version in zip(labels, tensors, versions, strict=True):
            if _version(tensor) != version:
                raise CaptureError(
                    f"region {self._key}: writes to {label}, which a region may not; put it in "
                    "eval mode, or let it return the new value"
                )
        # What an operator returns shares no memory with what it was given, nor among itself.
        taken = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        own = []
        for tensor in found:
            own.append(tensor.clone() if tensor.untyped_storage().data_ptr() in taken else tensor)
            taken.add(own[-1].untyped_storage().data_ptr())
        return form, own


def _meta(tensor: Tensor) -> _Meta:
    return tuple(tensor.shape), tensor.dtype


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _described(form: _Form, metas: Any) -> str:
    shapes = [f"{str(dtype).removeprefix('torch.')}{list(shape)}" for shape, dtype in metas]
    plain = [shown_value(leaf) for leaf in form.leaves if leaf is not _TENSOR]
    return ", ".join(shapes + plain) or "nothing"


def _run(tensors: Sequence[Tensor], key: str) -> list[Tensor]:
    region, number = _find(key)
    return region.run(number, tensors)


def _fake(tensors: Sequence[Tensor], key: str) -> list[Tensor]:
    region, number = _find(key)
    _, metas = region.results(number, tensors)
    device = tensors[0].device if tensors else torch.device("cpu")
    return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in metas]


def _find(key: str) -> tuple[Region, int]:
    name, _, number = key.rpartition("#")
    found = _regions.get(name)
    if found is None:
        raise CaptureError(f"region {name!r} is not in this process: capture the model anew")
    return found, int(number)


_operator = torch.library.custom_op(
    "doppler::region", _run, mutates_args=(), schema="(Tensor[] tensors, str key) -> Tensor[]"
)
_operator.register_fake(_fake)
