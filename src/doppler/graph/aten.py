"""Calls of torch's operators as functions of an op's inputs; see :mod:`doppler.graph.calls`.

Only operators that are registered, write to nothing and return tensors are called; those of a file
are of the namespace ``aten``. What a file says never becomes source text: names are looked up and
compared with torch's schemas, and literals are bound as constants.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import CodeType
from typing import Any

from doppler.errors import GraphError
from doppler.messages import shown, shown_value

#: What an op gives: a tensor, or a tuple of those of an op with several results.
Value = Any

_DENIED = {
    "from_file": "reads a file",
    # Where a tensor lies in its storage is not kept when it is copied to another device.
    "as_strided": "depends on how its input lies in memory",
    "as_strided_copy": "depends on how its input lies in memory",
    "as_strided_scatter": "depends on how its input lies in memory",
    # Given odd arguments they end the process, or never end.
    "fractional_max_pool2d_backward": "is not safe to call",
    "linalg_matrix_power": "is not safe to call",
    "matrix_power": "is not safe to call",
}
# Of libraries, for weights or tensors in forms of their own; not held against odd arguments.
_FOREIGN = {
    "quantized_": "is for quantized tensors, which no op takes",
    "fbgemm_": "is for quantized tensors, which no op takes",
    "mkldnn_": "is for tensors in a layout of a library, which no op takes",
    "sparse_": "is for sparse tensors, which no op takes",
}
# Operators whose names begin with an underscore are torch's own: given odd arguments some write
# where they should not, or end the process. Those are called that captured models hold.
_INTERNAL = frozenset(
    """
    __and__ __lshift__ __or__ __rshift__ __xor__
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
    _adaptive_avg_pool3d_backward _addmm_activation _aminmax _batch_norm_no_update
    _batch_norm_with_update_functional _cdist_backward _cdist_forward _chunk_cat _conj
    _conj_physical _conv_depthwise2d _convolution _ctc_loss _ctc_loss_backward _cudnn_rnn
    _cudnn_rnn_backward _efficient_attention_backward _efficientzerotensor _embedding_bag
    _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only
    _embedding_bag_per_sample_weights_backward _euclidean_dist _fft_c2c _fft_c2r _fft_r2c
    _fused_dropout _fused_rms_norm _fused_rms_norm_backward _grouped_mm _int_mm
    _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd _log_softmax
    _log_softmax_backward_data _logcumsumexp _masked_scale _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _neg_view
    _pdist_backward _pdist_forward _prelu_kernel _prelu_kernel_backward _reshape_alias
    _reshape_copy _safe_softmax _scaled_dot_product_attention_math
    _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_fused_attention_overrideable
    _scaled_dot_product_fused_attention_overrideable_backward _scaled_grouped_mm _scaled_mm
    _slow_conv2d_backward _slow_conv2d_forward _softmax _softmax_backward_data _stack
    _standard_gamma _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell
    _thnn_fused_lstm_cell_backward_impl _to_copy _trilinear _unsafe_index _unsafe_index_put
    _unsafe_masked_index _unsafe_masked_index_put_accumulate _unsafe_view
    _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa
    _upsample_bilinear2d_aa_backward _upsample_nearest_exact1d
    _upsample_nearest_exact1d_backward _upsample_nearest_exact2d
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d
    _upsample_nearest_exact3d_backward _weight_int8pack_mm _weight_norm _weight_norm_interface
    _weight_norm_interface_backward
    """.split()  # noqa: SIM905
)
# Operators that write to running statistics in training, which their schemas do not tell.
_TRAINING = {
    "batch_norm": "training",
    "native_batch_norm": "training",
    "cudnn_batch_norm": "training",
    "miopen_batch_norm": "training",
    "_batch_norm_impl_index": "training",
    "instance_norm": "use_input_stats",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operator: its name, its type in torch, and how it may be given."""

    name: str
    type: Any
    by_name_only: bool
    required: bool


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that an op may call.

    Attributes
    ----------
    name : str
    call : callable
    parameters : tuple of Parameter
    several : bool
        Whether it returns several values, even if it is a list of one.
    """

    name: str
    call: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    several: bool


@cache
def find_operator(name: str) -> Operator:
    """Look an operator up.

    Parameters
    ----------
    name : str
        ``"aten.linear.default"``.

    Raises
    ------
    GraphError
        If there is no such operator, or none that an op may call.
    """
    import torch
    from torch._ops import OpOverload, OpOverloadPacket

    namespace, operator, overload = name.split(".")
    try:
        packet = getattr(getattr(torch.ops, namespace), operator)
    except (AttributeError, RuntimeError):
        packet = None
    if not isinstance(packet, OpOverloadPacket):
        raise GraphError(f"this torch ({torch.__version__}) has no such operator")
    overloads: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    if overload not in overloads:
        known = ", ".join(overloads[:8])
        raise GraphError(f"the operator has no such overload; its overloads are {known}")
    found = getattr(packet, overload)
    if not isinstance(found, OpOverload):
        raise GraphError(f"this torch ({torch.__version__}) has no such operator")
    if operator in _DENIED:
        raise GraphError(f"{_DENIED[operator]}, which no op may")
    for prefix, reason in _FOREIGN.items():
        if operator.startswith(prefix):
            raise GraphError(reason)
    if overload.startswith("prim_"):
        raise GraphError("is an overload of TorchScript, which no op calls")
    schema = found._schema
    if schema.is_mutable or (operator.endswith("_") and operator not in _INTERNAL):
        raise GraphError("writes to its arguments, which no op may; take its functional form")
    if operator.startswith("_") and operator not in _INTERNAL:
        raise GraphError("is internal to torch and none of those that captured models hold")
    kinds = [str(returned.real_type) for returned in schema.returns]
    # Attention kernels return some numbers beside their tensors.
    if kinds != ["List[Tensor]"] and (kinds[:1] != ["Tensor"] or {*kinds} - {"Tensor", "int"}):
        raise GraphError(f"returns {', '.join(kinds) or 'nothing'}, must return tensors")
    parameters = tuple(
        Parameter(each.name, each.real_type, each.kwarg_only, not each.has_default_value())
        for each in schema.arguments
    )
    return Operator(operator, found, parameters, kinds != ["Tensor"])


@dataclass(frozen=True, slots=True)
class Bound:
    """A call whose arguments suit its operator."""

    operator: Operator
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def bind(call: Mapping[str, Any]) -> Bound:
    """Hold a call against the schema of its operator.

    A call that reads no tensor and says nothing of a device makes its tensor where the op runs.

    Raises
    ------
    GraphError
        If there is no such operator, or its arguments are too many, too few, of unknown names or
        of other kinds.
    """
    operator = find_operator(call["op"])
    args, kwargs = tuple(call.get("args", ())), dict(call.get("kwargs", {}))
    positional = [each for each in operator.parameters if not each.by_name_only]
    if len(args) > len(positional):
        raise GraphError(f"has {len(args)} arguments, takes at most {len(positional)}")
    given = {each.name: value for each, value in zip(positional, args, strict=False)}
    for name, value in kwargs.items():
        if name in given:
            raise GraphError(f"has argument {shown_value(name)} twice")
        given[name] = value
    known = {each.name: each for each in operator.parameters}
    for name, value in given.items():
        if name not in known or (name in kwargs and keyword.iskeyword(name)):
            raise GraphError(
                f"takes no argument {shown_value(name)}; its arguments are {', '.join(known)}"
            )
        if not _fits(value, known[name].type):
            raise GraphError(
                f"argument {name} is {shown_value(_plain(value))}, must be {known[name].type}"
            )
    for each in operator.parameters:
        if each.required and each.name not in given:
            raise GraphError(f"lacks the argument {each.name}")
    training = _TRAINING.get(operator.name)
    if training is not None and given.get(training) and given.get("running_mean") is not None:
        raise GraphError("writes to its running statistics, which no op may")
    if given.get("pin_memory"):
        raise GraphError("makes a tensor in pinned memory, which no op may")
    if not any(_reads(value) for value in given.values()) and given.get("device") is None:
        if "device" not in known or not known["device"].by_name_only:
            raise GraphError("reads no tensor, and takes no device on which to make one")
        kwargs["device"] = {"device": "here"}
    return Bound(operator, args, kwargs)


def compile_calls(
    attributes: Mapping[str, Any], n_inputs: int, device: str = "cpu"
) -> Callable[[Sequence[Value]], Value]:
    """Make one function of an op's calls.

    Parameters
    ----------
    attributes : mapping
        Whose form :func:`doppler.graph.calls.check_calls` has found right.
    n_inputs : int
        How many inputs the op has.
    device : str
        Where ``{"device": "here"}`` is.

    Returns
    -------
    callable
        Takes the op's inputs, a value each, and returns its value. Beyond the calls themselves it
        costs some tens of nanoseconds a call; a value is freed after its last use.

    Raises
    ------
    GraphError
        If a call does not suit its operator.
    """
    calls, results = attributes["calls"], attributes["results"]
    namespace: dict[str, Any] = {}

    def constant(value: Any) -> str:
        if value is None:
            return "None"
        name = f"c{len(namespace)}"
        namespace[name] = value
        return name

    def source(argument: Any) -> str:
        if isinstance(argument, Mapping) and "ref" in argument:
            item = f"[{argument['item']:d}]" if "item" in argument else ""
            return f"v{argument['ref']:d}{item}"
        if isinstance(argument, tuple | list) and _reads(argument):
            return f"[{', '.join(map(source, argument))}]"
        return constant(torch_value(argument, device))

    last = [-1] * (n_inputs + len(calls))
    for number, call in enumerate(calls):
        for ref in _refs((call.get("args", ()), tuple(call.get("kwargs", {}).values()))):
            last[ref] = number
    for result in results:
        last[result["ref"]] = len(calls)
    lines = ["def compute(inputs):"]
    if n_inputs:
        lines.append(f"    {', '.join(f'v{number}' for number in range(n_inputs))}, = inputs")
    for number, call in enumerate(calls):
        try:
            bound = bind(call)
        except GraphError as error:
            raise GraphError(f"call {number} ({shown(call['op'])}): {error}") from None
        arguments = [*map(source, bound.args)]
        # The names are torch's own: they were found in its schema.
        arguments += [f"{name}={source(value)}" for name, value in bound.kwargs.items()]
        function = constant(bound.operator.call)
        lines.append(f"    v{n_inputs + number} = {function}({', '.join(arguments)})")
        spent = [value for value in range(n_inputs + number) if last[value] == number]
        if last[n_inputs + number] < 0:
            spent.append(n_inputs + number)
        if spent and number + 1 < len(calls):
            lines.append(f"    del {', '.join(f'v{value}' for value in spent)}")
    values = [
        source({key: result[key] for key in ("ref", "item") if key in result}) for result in results
    ]
    lines.append(f"    return {values[0] if len(values) == 1 else '(' + ', '.join(values) + ')'}")
    exec(_code("\n".join(lines)), namespace)
    compute: Callable[[Sequence[Value]], Value] = namespace["compute"]
    return compute


def torch_value(argument: Any, device: str) -> Any:
    """Return what stands for a literal argument in torch; of a list, a list.

    Raises
    ------
    GraphError
        If this torch lacks the dtype.
    """
    import torch

    if isinstance(argument, tuple | list):
        return [torch_value(entry, device) for entry in argument]
    if not isinstance(argument, Mapping):
        return argument
    ((kind, name),) = argument.items()
    if kind == "float":
        return float(name)
    if kind == "device":
        return torch.device(device)
    found = getattr(torch, name, None)
    if found is None:
        raise GraphError(f"this torch ({torch.__version__}) has no {kind} {name}")
    return found


@lru_cache(maxsize=4096)
def _code(source: str) -> CodeType:
    # Ops of the same shape of calls have the same source: what differs are the constants.
    return compile(source, "<calls of an op>", "exec")


def _fits(value: Any, kind: Any) -> bool:
    """Whether an argument is of a type of torch's schemas."""
    name = kind.kind()
    if name == "OptionalType":
        return value is None or _fits(value, kind.getElementType())
    if name == "ListType":
        element = kind.getElementType()
        if isinstance(value, tuple | list):
            return all(_fits(entry, element) for entry in value)
        # One number stands for as many as there are axes.
        return element.kind() in ("IntType", "SymIntType", "FloatType") and _fits(value, element)
    number = isinstance(value, int | float) or (isinstance(value, Mapping) and "float" in value)
    if name == "TensorType":
        return number or (isinstance(value, Mapping) and "ref" in value)
    if name == "NumberType":
        return number
    if name == "FloatType":
        return number and not isinstance(value, bool)
    if name in _PLAIN:
        return type(value) is _PLAIN[name]
    return isinstance(value, Mapping) and _TORCH.get(name) in value


_PLAIN: Mapping[str, type] = {
    "IntType": int,
    "SymIntType": int,
    "BoolType": bool,
    "StringType": str,
}
_TORCH: Mapping[str, str] = {
    "ScalarTypeType": "dtype",
    "LayoutType": "layout",
    "MemoryFormatType": "memory_format",
    "DeviceObjType": "device",
}


def _refs(argument: Any) -> list[int]:
    if isinstance(argument, Mapping):
        return [argument["ref"]] if "ref" in argument else []
    if isinstance(argument, tuple | list):
        return [ref for entry in argument for ref in _refs(entry)]
    return []


def _reads(argument: Any) -> bool:
    return bool(_refs(argument))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
