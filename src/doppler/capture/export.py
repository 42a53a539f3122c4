"""A model as a program, by torch.export."""

from __future__ import annotations

import inspect
import io
import logging
import os
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from doppler.capture.fx import DEPENDS_ON_DATA, Placeholder, read_fx
from doppler.capture.program import Program
from doppler.checks import check_type
from doppler.errors import CaptureError
from doppler.messages import shown, shown_value

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.nn import Module
    from torch.utils._pytree import TreeSpec

#: Positional arguments, or keyword arguments, or both.
ExampleInputs: TypeAlias = "Sequence[Any] | Mapping[str, Any] | Tensor"

_LONGEST = 300


@dataclass(frozen=True, eq=False)
class Signature:
    """How a captured model is called, and what it returns.

    Attributes
    ----------
    arguments : TreeSpec
        Of ``(args, kwargs)``.
    inputs : tuple of (str or plain value)
        Of each leaf of the arguments: the name of the source, or the value that was captured.
    results : TreeSpec
    outputs : tuple of (str or plain value)
        Of each leaf of the results: the name of the output, or its value.
    """

    arguments: TreeSpec
    inputs: tuple[Any, ...]
    results: TreeSpec
    outputs: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TensorName:
    """A leaf of the arguments, or of the results, that is a tensor: its name in the program."""

    name: str


@dataclass(frozen=True, eq=False)
class Exported:
    """What torch.export found out about a model.

    Attributes
    ----------
    program : Program
        Sources of role ``"parameter"`` and ``"buffer"`` have the names that the model gives them.
    constants : dict of str to Tensor
    signature : Signature
    loss : str
        Name of the output that is the loss, of a training step.
    """

    program: Program
    constants: dict[str, Tensor]
    signature: Signature
    loss: str = ""


@dataclass(frozen=True, eq=False)
class Interface:
    """What goes into an exported program and what comes out of it.

    Attributes
    ----------
    placeholders : list of Placeholder
        One for each argument of its graph.
    labels : list of (str or None)
        Name of each output of its graph; None for one that is no tensor.
    fixed : dict of str to Tensor
        Values of the placeholders of role ``"constant"``.
    signature : Signature
    """

    placeholders: list[Placeholder]
    labels: list[str | None]
    fixed: dict[str, Tensor]
    signature: Signature


def split_inputs(
    example_inputs: object, kwargs: Mapping[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tell positional from keyword arguments.

    Parameters
    ----------
    example_inputs : tensor, sequence, or mapping of str
        A mapping holds keyword arguments. A sequence holds positional ones. One tensor is the only
        argument.
    kwargs : mapping of str, optional
        Keyword arguments beside positional ones.

    Raises
    ------
    CaptureError
        If it is none of them.
    """
    import torch

    if isinstance(example_inputs, Mapping) and kwargs is None:
        kwargs, example_inputs = example_inputs, ()
    if not isinstance(kwargs, Mapping | None):
        raise CaptureError(f"kwargs is {shown_value(kwargs)}, must be a dict of keyword arguments")
    if not all(isinstance(key, str) for key in kwargs or {}):
        raise CaptureError("example_inputs: the keys of keyword arguments must be strings")
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), dict(kwargs or {})
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), dict(kwargs or {})
    raise CaptureError(
        f"example_inputs is {shown_value(example_inputs)}, must be a tuple of the model's "
        "arguments, or a dict of its keyword arguments"
    )


def export(
    model: Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, name: str = ""
) -> Exported:
    """Capture the forward pass of a model, in the mode (train or eval) in which it is.

    Nothing is computed but shapes. Calls are functional and as large as torch has them: ``linear``
    and attention are not taken apart. Autocast and gradient mode are those of the caller.

    Parameters
    ----------
    model : torch.nn.Module
    args, kwargs
        What it is called with. Values that are no tensors become part of the program.
    name : str
        Of the program; by default that of the model's class.

    Raises
    ------
    CaptureError
        If the model cannot be captured; names the line of its code.
    """
    import torch

    check_type(model, torch.nn.Module, "model", CaptureError)
    name = name or type(model).__name__
    kwargs = dict(kwargs or {})
    with torch.no_grad():
        exported = trace(model, tuple(args), kwargs, name, functional=True)
        interface = describe(model, exported, name, args, kwargs)
        program, constants = read_fx(
            exported.graph_module, interface.placeholders, interface.labels, name
        )
    return Exported(program, {**interface.fixed, **constants}, interface.signature)


def trace(
    model: Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
    *,
    functional: bool,
) -> ExportedProgram:
    """Export a model, first as Python runs it, then by its bytecode.

    Parameters
    ----------
    model, args, kwargs, name
        As for :func:`export`.
    functional : bool
        Whether writes are replaced, and with them what is needed for gradients: where they are off.

    Raises
    ------
    CaptureError
        If the model cannot be captured.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    args, kwargs = _apart(model, args, kwargs)
    _check_arguments(model, args, kwargs, name)
    first: Exception | None = None
    for strict in (False, True):
        try:
            with quiet(), _attributes_kept(model):
                exported = torch.export.export(model, args, kwargs, strict=strict)
                if any(isinstance(value, FakeTensor) for value in exported.constants.values()):
                    # Torch itself looks for it the first way only; taken apart, it crashes.
                    raise RuntimeError("it writes to the .data of a tensor")
                return exported.run_decompositions({}) if functional else exported
        except CaptureError as error:
            raise CaptureError(f"{_where(error) or name}: {error}") from error
        except Exception as error:
            # What the second way says is about its own bytecode more than about the model.
            unclear = first is None or "fake tensor" in str(first)
            first = error if unclear else first
    assert first is not None
    raise explain(first, name) from first


def _check_arguments(
    model: Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> None:
    if model._forward_pre_hooks:
        return  # They may give it other arguments.
    try:
        signature = inspect.signature(model.forward)
    except ValueError:
        return  # Not of Python.
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(f"{name}: the example inputs are not its arguments: {error}") from error


def _apart(
    model: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give every tensor among the arguments an identity of its own.

    Export takes one tensor that is given twice, or is a parameter too, for one in every call.
    """
    import torch
    from torch.utils import _pytree as pytree

    seen = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def own(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and id(leaf) in seen:
            return leaf.detach()
        seen.add(id(leaf))
        return leaf

    apart: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(own, (args, kwargs))
    return apart


@contextmanager
def _attributes_kept(model: Module) -> Iterator[None]:
    """Give back to modules the tensors that they kept as attributes: a capture leaves fake ones."""
    import torch

    before = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, kept in before:
            for name, value in list(vars(module).items()):
                if isinstance(value, torch.Tensor) and value is not kept.get(name):
                    delattr(module, name)
                    if name in kept:
                        setattr(module, name, kept[name])


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to itself what torch says about a capture: what matters is in the error."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def explain(error: Exception, name: str) -> CaptureError:
    """Say in one line why a model cannot be captured, where, and what helps."""
    text = " ".join(str(error).split())
    where = _where(error) or name
    kind = type(error).__name__
    if "GuardOnDataDependent" in kind or "data-dependent" in text or "Unbacked" in text:
        return CaptureError(f"{where}: {DEPENDS_ON_DATA}")
    if "which is not a known type" in text:
        found = text.split("<class '")[-1].split("'")[0]
        advice = (
            "call the model with use_cache=False"
            if "Cache" in found
            else "register it by torch.export.register_dataclass or torch.utils._pytree"
        )
        return CaptureError(f"{where}: the model returns or takes a {found}; {advice}")
    if "fake impl" in text or "no fake" in text or "meta kernel" in text or "Meta" in kind:
        return CaptureError(
            f"{where}: {_short(text)}; give the operator a fake implementation "
            "(torch.library.register_fake), or keep the module whole with doppler.region"
        )
    return CaptureError(
        f"{where}: cannot be captured ({kind}: {_short(text)}); mend that, or keep the module "
        "whole with doppler.region"
    )


def _short(text: str) -> str:
    return shown(text) if not text.isprintable() else text[:_LONGEST]


def _where(error: BaseException) -> str:
    """Name the line of the model at which an error arose, if it did in one: file, line, code."""
    import torch

    folders = (Path(torch.__file__).parent, Path(__file__).parents[1], Path(os.__file__).parent)
    own = tuple(f"{folder}{os.sep}" for folder in folders)
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        installed = "site-packages" in frame.filename
        of_model = frame.name == "forward" if installed else not frame.filename.startswith(own[2])
        if of_model and not frame.filename.startswith((*own[:2], "<")):
            return f"{frame.filename}:{frame.lineno}: {(frame.line or '').strip().rstrip(':')}"
    return ""


def describe(
    model: Module,
    exported: ExportedProgram,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Interface:
    """Name the tensors that an exported program reads and returns, as the model names them.

    Raises
    ------
    CaptureError
        If it returns something that is neither a tensor nor a plain value.
    """
    import torch
    from torch.export.graph_signature import InputKind, OutputKind
    from torch.utils import _pytree as pytree

    signature = exported.graph_signature
    tied = _tied(model)
    placeholders = []
    user: list[str] = []
    fixed: dict[str, Tensor] = {}
    for spec in signature.input_specs:
        target = str(spec.target)
        if spec.kind is InputKind.PARAMETER:
            placeholders.append(Placeholder(tied.get(target, target), "parameter"))
        elif spec.kind is InputKind.BUFFER:
            placeholders.append(Placeholder(tied.get(target, target), "buffer"))
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            label = f"constant.{target}"
            placeholders.append(Placeholder(label, "constant"))
            fixed[label] = exported.constants[target].detach()
        else:
            user.append(spec.arg.name)
            placeholders.append(Placeholder(spec.arg.name, "input"))
    labels: list[str | None] = []
    outputs: list[Any] = []
    for spec in signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION:
            target = str(spec.target)
            labels.append(f"buffer:{tied.get(target, target)}")
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            labels.append(f"input:{spec.target}")
        elif spec.kind is OutputKind.USER_OUTPUT:
            is_tensor = hasattr(spec.arg, "name") and not hasattr(spec.arg, "value")
            label = f"output{len(outputs)}"
            labels.append(label if is_tensor else None)
            outputs.append(TensorName(label) if is_tensor else spec.arg.value)
        elif spec.kind.name == "PARAMETER_MUTATION":
            raise CaptureError(
                f"{name}: writes to its parameter {str(spec.target)!r} when it is called, which "
                "cannot be captured; register it as a buffer"
            )
        else:
            raise CaptureError(f"{name}: an output of kind {spec.kind.name} cannot be captured")
    leaves, arguments = pytree.tree_flatten((tuple(args), dict(kwargs)))
    names = iter(user)
    inputs: list[Any] = []
    for leaf in leaves:
        label = next(names)
        inputs.append(TensorName(label) if isinstance(leaf, torch.Tensor) else leaf)
    results = exported.call_spec.out_spec
    assert results is not None
    return Interface(
        placeholders, labels, fixed, Signature(arguments, tuple(inputs), results, tuple(outputs))
    )


def _tied(model: Module) -> dict[str, str]:
    """Give every further name of a tensor of the model its first name."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            names[name] = first.setdefault(id(tensor), name)
    return names
