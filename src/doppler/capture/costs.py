"""What a call costs: floating-point operations and bytes, from shapes alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from doppler.capture.operators import is_view
from doppler.capture.program import Call, Program

Shape = tuple[int, ...]

# Floating-point operations for each element of the result, where that is not about one; as in the
# generated workloads, a transcendental function counts as some.
_PER_ELEMENT: Mapping[str, float] = {
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax"), 5.0),
    **dict.fromkeys(("gelu", "tanh", "sigmoid", "silu", "exp", "erf", "cos", "sin"), 8.0),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "batch_norm", "group_norm"), 8.0),
    **dict.fromkeys(("native_group_norm", "_native_batch_norm_legit_functional"), 8.0),
    **dict.fromkeys(("_native_batch_norm_legit_no_training", "rms_norm", "_fused_rms_norm"), 8.0),
    **dict.fromkeys(("gelu_backward", "silu_backward", "native_batch_norm_backward"), 10.0),
    **dict.fromkeys(("native_layer_norm_backward", "native_group_norm_backward"), 10.0),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), 4.0),
}


def flops(call: Call, program: Program) -> float:
    """Floating-point operations of a call: two for each product and sum.

    Parameters
    ----------
    call : Call
    program : Program
        That it belongs to.
    """
    if is_view(call.op):
        return 0.0
    operator = call.op.split(".")[1]
    rule = _RULES.get(operator)
    shapes = [program.meta(ref).shape for ref in call.refs()]
    results = [meta for meta in call.results if meta is not None]
    if rule is not None:
        return float(rule(call, shapes, [meta.shape for meta in results]))
    elements = max(
        max((math.prod(shape) for shape in shapes), default=0) if _reduces(operator) else 0,
        sum(meta.elements for meta in results),
    )
    return elements * _PER_ELEMENT.get(operator, 1.0)


def is_heavy(op: str) -> bool:
    """Whether an operator multiplies matrices: all others move or map elements."""
    return op.split(".")[1] in _RULES


def traffic(call: Call, program: Program) -> tuple[float, float]:
    """Bytes that a call reads, and bytes that it writes; none for a view.

    A lookup (embedding, index, gather) reads as many bytes as it returns, whatever the table.
    """
    if is_view(call.op):
        return 0.0, 0.0
    written = float(sum(meta.bytes for meta in call.results if meta is not None))
    operator = call.op.split(".")[1]
    if operator in _LOOKUPS:
        return written + sum(program.meta(ref).bytes for ref in list(call.refs())[1:]), written
    return float(sum(program.meta(ref).bytes for ref in dict.fromkeys(call.refs()))), written


_LOOKUPS = frozenset(("embedding", "index", "index_select", "gather", "slice", "select"))


def _reduces(operator: str) -> bool:
    return operator in ("sum", "mean", "amax", "amin", "max", "min", "var", "argmax", "norm", "any")


def _linear(call: Call, shapes: Sequence[Shape], results: Sequence[Shape]) -> float:
    return 2.0 * math.prod(results[0]) * shapes[0][-1]


def _product(call: Call, shapes: Sequence[Shape], results: Sequence[Shape]) -> float:
    first = shapes[-2]
    return 2.0 * math.prod(results[0]) * first[-1]


def _einsum(call: Call, shapes: Sequence[Shape], results: Sequence[Shape]) -> float:
    terms = call.args[0].replace(" ", "").split("->")[0].split(",")
    extents: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        extents.update(zip(term, shape, strict=False))
    return 2.0 * math.prod(extents.values())


def _grouped(call: Call, shapes: Sequence[Shape], results: Sequence[Shape]) -> float:
    return 2.0 * math.prod(results[0]) * shapes[0][-1]


def _convolution(call: Call, shapes: Sequence[Shape], results: Sequence[Shape]) -> float:
    # Each element of the result (or, transposed, of the input) meets one filter.
    weight = shapes[1]
    transposed = "transpose" in call.op or (len(call.args) > 6 and call.args[6] is True)
    return 2.0 * math.prod(shapes[0] if transposed else results[0]) * math.prod(weight[1:])


def _convolution_backward(call: Call, shapes: Sequence[Shape], results: Sequence[Shape]) -> float:
    gradient, given, weight = shapes[:3]
    wanted = call.args[10] if len(call.args) > 10 else (True, True, True)
    transposed = len(call.args) > 7 and call.args[7] is True
    return (
        2.0
        * math.prod(given if transposed else gradient)
        * math.prod(weight[1:])
        * sum(map(bool, wanted[:2]))
    )


def _attention(call: Call, shapes: Sequence[Shape], results: Sequence[Shape]) -> float:
    query, key, value = shapes[:3]
    return 2.0 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(call: Call, shapes: Sequence[Shape], results: Sequence[Shape]) -> float:
    # Scores anew, then the gradients of scores, values, queries and keys.
    _, query, key, value = shapes[:4]
    return 2.0 * math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


def _recurrent(call: Call, shapes: Sequence[Shape], results: Sequence[Shape]) -> float:
    # Every step multiplies by every matrix of weights.
    steps = math.prod(shapes[0][:-1])
    return 2.0 * steps * sum(math.prod(shape) for shape in shapes[1:] if len(shape) == 2)


def _cell(call: Call, shapes: Sequence[Shape], results: Sequence[Shape]) -> float:
    # Weights come after the states; an LSTM has two of them.
    weights = shapes[3:5] if "lstm" in call.op else shapes[2:4]
    return 2.0 * shapes[0][0] * sum(map(math.prod, weights))


_Rule = Callable[[Call, Sequence[Shape], Sequence[Shape]], float]
_RULES: Mapping[str, _Rule] = {
    "linear": _linear,
    "einsum": _einsum,
    **dict.fromkeys(("mm", "bmm", "matmul", "addmm", "baddbmm", "mv", "dot"), _product),
    **dict.fromkeys(("_grouped_mm", "grouped_mm_fallback"), _grouped),
    **dict.fromkeys(
        ("convolution", "conv1d", "conv2d", "conv3d", "_convolution", "mkldnn_convolution"),
        _convolution,
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        _convolution,
    ),
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(
        (
            "scaled_dot_product_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
        ),
        _attention,
    ),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_cudnn_attention_backward",
        ),
        _attention_backward,
    ),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _cell),
}
