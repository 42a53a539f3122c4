"""From the arguments of a call to tensors by name, and back to what the model returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from doppler.capture.export import Signature, TensorName
from doppler.errors import CaptureError
from doppler.graph import Graph
from doppler.messages import shown, shown_value

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils._pytree import TreeSpec


class Calls:
    """How a captured model is called.

    Parameters
    ----------
    signature : Signature
    graph : Graph
        Says which shape and dtype each input has.
    """

    def __init__(self, signature: Signature, graph: Graph) -> None:
        self._signature = signature
        self._tensors = graph.tensors
        self._name = graph.name
        self._trains = any(tile.tensor.startswith("grad:") for tile in graph.outputs.values())

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Name the tensors of a call.

        Raises
        ------
        CaptureError
            If the arguments differ from those of the capture in number, structure, shape, dtype or
            value; names the input and the dimension.
        """
        from torch import Tensor
        from torch.utils import _pytree as pytree

        expected = self._signature.arguments
        # The order in which keywords are given is of no meaning.
        order = children(expected)[1].context or ()
        known = {key: kwargs[key] for key in order if key in kwargs}
        leaves, spec = pytree.tree_flatten((args, {**known, **kwargs}))
        if spec != expected:
            raise CaptureError(
                f"{self._name}: called with {_described(spec)}, captured with "
                f"{_described(expected)}; compile it again for other arguments"
            )
        tensors = {}
        for leaf, label in zip(leaves, self._signature.inputs, strict=True):
            if isinstance(label, TensorName):
                if not isinstance(leaf, Tensor):
                    raise CaptureError(
                        f"{self._name}: input {label.name!r} is {shown_value(leaf)}, was a tensor "
                        "when the model was captured"
                    )
                self._check(label.name, leaf)
                if self._trains and leaf.requires_grad:
                    raise CaptureError(
                        f"{self._name}: input {label.name!r} requires a gradient, and a training "
                        "step gives those of parameters alone; give it detached"
                    )
                tensors[label.name] = leaf.detach()
            elif type(leaf) is not type(label) or (leaf != label and leaf == leaf):
                raise CaptureError(
                    f"{self._name}: an argument is {shown_value(leaf)}, was {shown_value(label)} "
                    "when the model was captured; compile it again for another value"
                )
        return tensors

    def _check(self, name: str, tensor: Tensor) -> None:
        spec = self._tensors.get(name)
        if spec is None:
            return
        shape, wanted = tuple(tensor.shape), tuple(spec.shape)
        if len(shape) != len(wanted):
            raise CaptureError(
                f"{self._name}: input {name!r} has {len(shape)} dimensions, was captured with "
                f"{len(wanted)}: {wanted}"
            )
        for axis, (given, captured) in enumerate(zip(shape, wanted, strict=True)):
            if given != captured:
                raise CaptureError(
                    f"{self._name}: input {name!r} has {given} in dimension {axis}, was captured "
                    f"with {captured}; compile it for shape {shape}, or use "
                    "torch.compile(model, backend='doppler'), which compiles for every new shape"
                )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype != spec.dtype:
            raise CaptureError(
                f"{self._name}: input {name!r} is of dtype {dtype}, was captured with {spec.dtype}"
            )

    def results(self, output: Callable[[str], Tensor]) -> Any:
        """Put together what the model returns.

        Parameters
        ----------
        output : callable
            Gives the tensor of an output by its name.
        """
        from torch.utils import _pytree as pytree

        leaves = [
            output(label.name) if isinstance(label, TensorName) else label
            for label in self._signature.outputs
        ]
        return pytree.tree_unflatten(leaves, self._signature.results)


def _described(spec: TreeSpec) -> str:
    args, kwargs = children(spec)
    count = f"{args.num_children} positional argument{'s' if args.num_children != 1 else ''}"
    names = ", ".join(map(str, kwargs.context or ()))
    text = f"{count} and {shown(names)}" if names else count
    return f"{text} ({spec.num_leaves} values)"


def children(spec: TreeSpec) -> list[TreeSpec]:
    """Return the parts of a structure."""
    # What older releases of torch call children_specs.
    found: list[TreeSpec] = spec.children() if hasattr(spec, "children") else spec.children_specs
    return found
