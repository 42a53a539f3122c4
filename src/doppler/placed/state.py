"""What a captured model is made of, and what of it has changed since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from doppler.errors import CaptureError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class ModelState:
    """The tensors of a model by name, looked up anew each time: they may be replaced.

    Parameters
    ----------
    model : torch.nn.Module
    names : iterable of str
        Of parameters and buffers.

    Attributes
    ----------
    tied : dict of str to str
        Further names of these tensors, each with the first.

    Raises
    ------
    CaptureError
        If the model lacks one.
    """

    def __init__(self, model: Module, names: Iterable[str]) -> None:
        self._model = type(model).__name__
        self._owners: dict[str, _Owner] = {}
        for name in names:
            owner = _owner(model, name)
            if owner is None:
                raise CaptureError(
                    f"{self._model}: has no parameter or buffer {name!r}, as the captured model "
                    "had; give the same model"
                )
            self._owners[name] = owner
        first = {id(self.tensor(name)): name for name in reversed(self._owners)}
        self.tied: dict[str, str] = {}
        for named in (model.named_parameters, model.named_buffers):
            for name, tensor in named(remove_duplicate=False):
                if first.get(id(tensor), name) != name:
                    self.tied[name] = first[id(tensor)]
        self._others = [(name, _owner(model, name), known) for name, known in self.tied.items()]
        # The tensors themselves: an address may be that of another one by now.
        self._seen: dict[str, tuple[Tensor, int, int]] = {}

    def tensor(self, name: str) -> Tensor:
        """Return a parameter or buffer as it is now.

        Raises
        ------
        CaptureError
            If it has been removed since.
        """
        tensors, leaf = self._owners[name]
        found = tensors.get(leaf)
        if found is None:
            raise CaptureError(f"{self._model}: lost its parameter or buffer {name!r}")
        return found

    def changed(self) -> dict[str, Tensor]:
        """Return what is another tensor, or was written to, since the last call; all at first.

        What is written to ``tensor.data`` is seen by nobody.

        Raises
        ------
        CaptureError
            If one has been removed, is of another dtype, or is not tied any more.
        """
        import torch

        for other, owner, name in self._others:
            if owner is None or owner[0].get(owner[1]) is not self.tensor(name):
                raise CaptureError(
                    f"{self._model}: {other!r} and {name!r} were one tensor and are two now; tie "
                    "them again, or compile the model again"
                )
        changed = {}
        for name in self._owners:
            tensor = self.tensor(name)
            # An inference tensor counts no versions, and is written to by nobody else.
            version = -1 if tensor.is_inference() else tensor._version
            address = tensor.data_ptr() if tensor.layout == torch.strided else 0
            seen = self._seen.get(name)
            if seen is None or seen[0] is not tensor or seen[1:] != (version, address):
                changed[name] = tensor.detach()
                self._seen[name] = tensor, version, address
        return changed

    def forget(self) -> None:
        """Count everything as changed."""
        self._seen.clear()


_Owner: TypeAlias = "tuple[Mapping[str, Tensor | None], str]"


def _owner(model: Module, name: str) -> _Owner | None:
    path, _, leaf = name.rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:
        return None
    for tensors in (owner._parameters, owner._buffers):
        if leaf in tensors:
            return tensors, leaf
    return None


class ModuleTree:
    """The modules of a model as they are: which there are, and in what mode (train or eval).

    Parameters
    ----------
    model : torch.nn.Module
    """

    def __init__(self, model: Module) -> None:
        self._model = model
        self._training = model.training
        self._links = []
        for path, parent in model.named_modules():
            for name, child in parent._modules.items():
                if child is not None:
                    where = f"{path}.{name}" if path else name
                    self._links.append((where, parent._modules, name, child, child.training))

    @property
    def exceptions(self) -> tuple[str, ...]:
        """Paths of the modules that are not in the mode of the model."""
        return tuple(link[0] for link in self._links if link[4] != self._training)

    def check(self) -> None:
        """Hold the model against what it was. O(modules).

        Raises
        ------
        CaptureError
            If a module was replaced, or is in another mode.
        """
        if self._model.training != self._training:
            raise self._another_mode("", self._training)
        for path, modules, name, child, training in self._links:
            if modules.get(name) is not child:
                raise CaptureError(
                    f"{type(self._model).__name__}: its module {path!r} was replaced after the "
                    "capture; compile the model again"
                )
            if child.training != training:
                raise self._another_mode(f".{path}", training)

    def _another_mode(self, path: str, training: bool) -> CaptureError:
        word = "train" if training else "eval"
        return CaptureError(
            f"{type(self._model).__name__}: was captured with model{path} in {word} mode, which it "
            f"is not in now; call model{path}.{word}(), or compile it again"
        )
