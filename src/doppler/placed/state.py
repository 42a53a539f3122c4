"""The parameters and buffers of a model, and which of them have changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

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

    Raises
    ------
    CaptureError
        If the model lacks one.
    """

    def __init__(self, model: Module, names: Iterable[str]) -> None:
        self._owners: dict[str, tuple[Mapping[str, Tensor | None], str]] = {}
        for name in names:
            path, _, leaf = name.rpartition(".")
            try:
                owner = model.get_submodule(path)
            except AttributeError:
                owner = None
            if owner is not None and leaf in owner._parameters:
                self._owners[name] = owner._parameters, leaf
            elif owner is not None and leaf in owner._buffers:
                self._owners[name] = owner._buffers, leaf
            else:
                raise CaptureError(
                    f"{type(model).__name__}: has no parameter or buffer {name!r}, as the captured "
                    "model had; give the same model"
                )
        self._seen: dict[str, tuple[int, int]] = {}

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
            raise CaptureError(f"the model lost its parameter or buffer {name!r}")
        return found

    def changed(self) -> dict[str, Tensor]:
        """Return what is another tensor, or was written to, since the last call; all at first."""
        changed = {}
        for name in self._owners:
            tensor = self.tensor(name)
            # An inference tensor counts no versions, and is written to by nobody else.
            mark = id(tensor), -1 if tensor.is_inference() else tensor._version
            if self._seen.get(name) != mark:
                changed[name] = tensor.detach()
                self._seen[name] = mark
        return changed

    def forget(self) -> None:
        """Count everything as changed."""
        self._seen.clear()
