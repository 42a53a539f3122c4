"""Modules that are kept whole: one op each, whatever they do inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from doppler.checks import check_type
from doppler.errors import CaptureError

if TYPE_CHECKING:
    from torch.nn import Module


def region(module: Module) -> Module:
    """Keep a module whole: to a capture it is one operator, and nothing is looked into.

    For modules whose steps depend on the values of tensors, or that call operators without a fake
    implementation. Put the result in the place of the module: it has the module's parameters, under
    one more name (``inner``), and computes the same.

    To learn the shapes of what it returns, a capture runs the module once, on zeros of the shapes
    of its inputs. Shapes must follow from those, and the module must not write to its buffers or
    arguments. A training step cannot contain it where gradients pass through. Under
    ``torch.compile`` it is as the module itself.

    Parameters
    ----------
    module : torch.nn.Module
        Takes and returns tensors and plain values, and tuples, lists and dicts of them.

    Returns
    -------
    torch.nn.Module

    Raises
    ------
    CaptureError
        If it is no module; at capture, if the module does not keep to the above.

    Examples
    --------
    >>> model.router = region(model.router)  # doctest: +SKIP
    """
    import torch

    from doppler.capture.region_module import Region

    return Region(check_type(module, torch.nn.Module, "region: module", CaptureError))
