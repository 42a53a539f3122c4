"""A training step as a program, by torch.export and aot_autograd: forward, loss and backward pass.

The private parts of torch that this takes are named in :func:`_joint` and :func:`_interpreter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from doppler.capture.export import (
    Exported,
    Interface,
    describe,
    explain,
    quiet,
    trace,
)
from doppler.capture.fx import Placeholder, read_fx
from doppler.capture.program import Program
from doppler.checks import check_type
from doppler.errors import CaptureError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Interpreter, Node
    from torch.nn import Module

#: Takes the loss from what the model returns.
Loss = Callable[[Any], Any]

_TANGENT = "constant.gradient_of_loss"


def export_step(
    model: Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Loss | None = None,
    name: str = "",
) -> Exported:
    """Capture the forward pass of a model, its loss, and the gradients of its parameters.

    Nothing is computed but shapes. Convolution, attention and normalization stay one call each, and
    so do their gradients; ``linear`` becomes a product of matrices. Attention is the kernel of the
    device on which the model is: a model on ``meta`` has one that runs on every kind of device.
    Dropout is drawn once for both passes.

    Parameters
    ----------
    model : torch.nn.Module
        In the mode (train or eval) in which it is to be trained.
    args, kwargs
        What it is called with. Values that are no tensors become part of the program.
    loss : callable, optional
        Given what the model returns, returns the loss, a tensor of one element. By default: what
        the model returns, if that is a tensor; its attribute or key ``"loss"``; or its first entry.
    name : str
        Of the program; by default that of the model's class.

    Returns
    -------
    Exported
        Outputs ``"output0"``, ... of what the model returns; ``"loss"`` if the loss is not one of
        them; ``"buffer:NAME"`` of the buffers that change; ``"grad:NAME"`` of the parameters that
        require gradients and on which the loss depends, by the first name of one that is tied.

    Raises
    ------
    CaptureError
        If the model cannot be captured, has no parameter that requires a gradient, or returns no
        loss of one element that depends on one.
    """
    import torch

    check_type(model, torch.nn.Module, "model", CaptureError)
    name = name or type(model).__name__
    args, kwargs = tuple(args), dict(kwargs or {})
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise CaptureError(f"{name}: no parameter requires a gradient; nothing is to be trained")
    _refuse_hooks(model, name)
    with torch.enable_grad():
        exported = trace(model, args, kwargs, name, functional=False)
        interface = describe(model, exported, name, args, kwargs)
        return _Step(model, exported, interface, loss, name).capture(args, kwargs)


def _refuse_hooks(model: Module, name: str) -> None:
    """Refuse what would be called during an eager backward pass, and is not in a captured one."""
    hooked = [
        label
        for label, parameter in model.named_parameters()
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    ]
    hooked += [
        label or "the model"
        for label, module in model.named_modules()
        if module._backward_hooks or module._backward_pre_hooks
    ]
    if hooked:
        raise CaptureError(
            f"{name}: {hooked[0]} has a hook on its gradient, which cannot be captured; remove it, "
            "and do what it does between the call and the optimizer's step"
        )


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Names of what the traced function returns, in order; the loss is one of them."""

    labels: tuple[str | None, ...]
    loss: str


class _Step:
    def __init__(
        self,
        model: Module,
        exported: ExportedProgram,
        interface: Interface,
        loss: Loss | None,
        name: str,
    ) -> None:
        self.exported = exported
        self.interface = interface
        self.loss = loss
        self.name = name
        self.state = {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
        }
        self.outputs: _Outputs | None = None

    def capture(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exported:
        from torch.utils import _pytree as pytree

        given = iter(pytree.tree_leaves((tuple(args), dict(kwargs))))
        # One entry for each placeholder, and one tensor for all that are tied.
        values = [self._value(placeholder, given) for placeholder in self.interface.placeholders]
        self.names: dict[str, int] = {}
        tensors: list[Tensor] = []
        placeholders: list[Placeholder] = []
        self.slots: list[int | None] = []
        self.plain = values
        for placeholder, value in zip(self.interface.placeholders, values, strict=True):
            if not _is_tensor(value):
                self.slots.append(None)
                continue
            if placeholder.name not in self.names:
                self.names[placeholder.name] = len(tensors)
                tensors.append(value)
                placeholders.append(placeholder)
            self.slots.append(self.names[placeholder.name])
        self.buffers = [each for each in placeholders if each.role == "buffer"]
        try:
            with quiet():
                joint = _joint(self._run, tuple(tensors))
        except CaptureError:
            raise
        except Exception as error:
            if "FakeTensor" in str(error):
                raise CaptureError(
                    f"{self.name}: the loss reads a tensor that the model is not given; make it an "
                    "input of the model"
                ) from error
            raise explain(error, self.name) from error
        return self._read(joint, placeholders)

    def _value(self, placeholder: Placeholder, given: Any) -> Any:
        if placeholder.role == "input":
            value = next(given)
            return value.detach() if _is_tensor(value) else value
        if placeholder.role == "constant":
            return self.interface.fixed[placeholder.name]
        return self.state[placeholder.name]

    def _run(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute what the model returns, its loss and its buffers; only the loss has a gradient.

        Called to trace it. Copies keep tensors apart, so that buffers can be written to and outputs
        share no memory; none of them is left in a program that was simplified.
        """
        from torch.utils import _pytree as pytree

        state = {each.name: tensors[self.names[each.name]].clone() for each in self.buffers}
        values = [
            plain if slot is None else state.get(placeholder.name, tensors[slot])
            for placeholder, plain, slot in zip(
                self.interface.placeholders, self.plain, self.slots, strict=True
            )
        ]
        leaves = list(_interpreter(self.exported.graph_module).run(*values))
        labels = list(self.interface.labels)
        spec = self.interface.signature.results
        kept = [at for at, label in enumerate(labels) if (label or "output").startswith("output")]
        loss = loss_of(
            pytree.tree_unflatten([leaves[at] for at in kept], spec), self.loss, self.name
        )
        at = next((at for at, leaf in enumerate(leaves) if leaf is loss), None)
        if at is None:
            at = len(leaves)
            labels.append("loss")
            leaves.append(loss)
        for each, value in state.items():
            labels.append(f"buffer:{each}")
            leaves.append(value)
        found = [number for number, leaf in enumerate(leaves) if _is_tensor(leaf)]
        self.outputs = _Outputs(tuple(labels[number] for number in found), str(labels[at]))
        return tuple(
            (leaves[number] if number == at else leaves[number].detach()).clone()
            for number in found
        )

    def _read(self, joint: GraphModule, placeholders: list[Placeholder]) -> Exported:
        import torch

        assert self.outputs is not None
        _name_sums(joint)
        n_tangents = sum(node.op == "placeholder" for node in joint.graph.nodes) - len(placeholders)
        tangents = [Placeholder(_TANGENT, "constant")] * n_tangents
        gradients = [
            f"grad:{each.name}" if each.role == "parameter" else None for each in placeholders
        ]
        program, constants = read_fx(
            joint, [*placeholders, *tangents], [*self.outputs.labels, *gradients], self.name
        )
        meta = program.sources[_TANGENT].meta
        one = torch.ones(meta.shape, dtype=getattr(torch, meta.dtype))
        fixed = {**self.interface.fixed, _TANGENT: one}
        return Exported(
            _changed(program),
            {**fixed, **constants},
            self.interface.signature,
            self.outputs.loss,
        )


def loss_of(output: Any, loss: Loss | None, name: str) -> Tensor:
    """Take the loss from what a model returns.

    Raises
    ------
    CaptureError
        If there is none, or it is no single number that depends on parameters.
    """
    if loss is not None:
        found = loss(output)
    elif isinstance(output, Mapping) and "loss" in output:
        found = output["loss"]
    elif _is_tensor(output):
        found = output
    elif hasattr(output, "loss"):
        found = output.loss
    else:
        found = output[0] if isinstance(output, Sequence) and output else None
    if not _is_tensor(found):
        raise CaptureError(
            f"{name}: no loss in what the model returns ({type(output).__name__}); call it with "
            "labels, or say where by loss=lambda output: ..."
        )
    tensor: Tensor = found
    if tensor.numel() != 1:
        raise CaptureError(
            f"{name}: the loss has shape {tuple(tensor.shape)}, must be one number; say how it is "
            "taken by loss=lambda output: ..."
        )
    if not tensor.requires_grad:
        raise CaptureError(f"{name}: the loss depends on no parameter that requires a gradient")
    return tensor


def _changed(program: Program) -> Program:
    """Leave out buffers that the model does not write to."""
    n_inputs = len(program.inputs)

    def source(value: int) -> int:
        while value >= n_inputs:
            call = program.calls[value - n_inputs]
            if call.op not in ("aten.clone.default", "aten.detach.default"):
                break
            value = next(call.refs()).value
        return value

    kept = tuple(
        output
        for output in program.outputs
        if not output.name.startswith("buffer:") or source(output.pieces[0][0].value) >= n_inputs
    )
    return replace(program, outputs=kept)


def _name_sums(joint: GraphModule) -> None:
    """Give sums of gradients the module of the first gradient: autograd names none for them."""
    for node in joint.graph.nodes:
        if node.op == "call_function" and not _module_stack(node):
            stacks = map(_module_stack, node.all_input_nodes)
            node.meta["nn_module_stack"] = next((stack for stack in stacks if stack), {})


def _module_stack(node: Node) -> dict[str, Any]:
    found = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return found or {}


def _joint(function: Callable[..., tuple[Tensor, ...]], args: tuple[Tensor, ...]) -> GraphModule:
    """Trace a function and its gradients into one functional graph.

    Its arguments are those of the function, then one for the gradient of each result that has one;
    its results are those of the function, then one gradient, or None, for each argument.
    """
    import torch
    from torch._functorch.aot_autograd import aot_export_joint_simple

    # Calls keep the modules and lines of the graph that is interpreted. The LSTM of oneDNN makes
    # what its gradient reads only where a gradient is asked for, which is not so when an op runs.
    with torch.fx.traceback.preserve_node_meta(), torch.backends.mkldnn.flags(enabled=False):
        graph = aot_export_joint_simple(function, args, trace_joint=True, decompositions={})
    assert isinstance(graph, torch.fx.GraphModule)
    return graph


def _interpreter(module: GraphModule) -> Interpreter:
    """Run an exported graph so that gradients are off, and autocast on, where they were."""
    import torch

    class Run(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            name = getattr(target, "__name__", "")
            if name == "wrap_with_set_grad_enabled":
                enabled, body, *rest = args
                with torch.set_grad_enabled(enabled):
                    return Run(body).run(*rest)
            if name == "wrap_with_autocast":
                device, dtype, enabled, cache, body, *rest = args
                with torch.autocast(device, dtype, enabled, cache):
                    return Run(body).run(*rest)
            return super().call_function(target, args, kwargs)

    return Run(module)


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
