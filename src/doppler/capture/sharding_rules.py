"""Signature of torch's operators: which of their axes can be cut together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from doppler.capture.operators import overload
from doppler.capture.program import Call, Program, Ref, refs_in
from doppler.capture.schemas import Given, bind, pointwise
from doppler.capture.signatures import (
    Axes,
    Axis,
    AxisSignature,
    Shape,
    Site,
    axes,
    broadcast,
    positions,
)

Rule = Callable[[Site], AxisSignature | None]

RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators, by their names without overload."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return register


@rule("_to_copy to clone alias detach contiguous dropout native_dropout")
@rule("zeros_like ones_like empty_like")
@rule(
    "full_like fill masked_fill where floor_divide rsub __and__ __or__ hardswish type_as lift_fresh"
)
def elementwise(site: Site) -> AxisSignature | None:
    """Every entry of the results from the same entry of the operands, broadcast."""
    labels = positions(len(site.result))
    if any(meta.shape != site.result for meta in site.results):
        return None
    operands = {
        name: tuple(broadcast(shape, site.result, labels) for shape in site.shapes(name))
        for name in site.given
    }
    return AxisSignature(operands, (labels,) * len(site.results))


# Contractions


def contraction(
    operands: Mapping[str, tuple[str, ...]],
    result: str,
    bare: Callable[[Given], tuple[str, Given]] | None = None,
    sums: bool = True,
) -> AxisSignature:
    """Write a product of tensors as an einsum of letters; a dot is broadcast."""
    contracted = frozenset("".join(map("".join, operands.values()))) - {*result, "."}
    summed = contracted if sums else frozenset()
    # A contracted axis that may not be summed stays whole.
    hidden = contracted - summed

    def seen(term: str) -> Axes:
        return axes("".join("." if letter in hidden else letter for letter in term))

    return AxisSignature(
        {name: tuple(map(seen, terms)) for name, terms in operands.items()},
        (axes(result),),
        summed,
        "contraction",
        bare=bare,
    )


def letters(count: int) -> str:
    """As many letters, none of which a rule below uses itself."""
    return "abcdefghABCDEFGH"[:count]


@rule("linear")
def linear(site: Site) -> AxisSignature | None:
    """``input[..., k] weight[n, k] + bias[n]``."""
    batch = letters(len(site.shape("input")) - 1)
    operands = {"input": (batch + "k",), "weight": ("nk",)}
    if len(site.shape("weight")) != 2:
        return None
    if site.shapes("bias"):
        operands["bias"] = ("n",)
    return contraction(
        operands, batch + "n", lambda given: ("aten.linear.default", {**given, "bias": None})
    )


@rule("mm")
def mm(site: Site) -> AxisSignature | None:
    """Matrix by matrix."""
    return contraction({"self": ("mk",), "mat2": ("kn",)}, "mn")


@rule("bmm")
def bmm(site: Site) -> AxisSignature | None:
    """Matrices by matrices."""
    return contraction({"self": ("bmk",), "mat2": ("bkn",)}, "bmn")


def added(site: Site, result: str) -> str:
    """Letters of the ``self`` of addmm and baddbmm, which is broadcast to the result."""
    shape = site.shape("self")
    offset = len(result) - len(shape)
    return "".join(
        result[offset + axis] if extent == site.result[offset + axis] else "."
        for axis, extent in enumerate(shape)
    )


@rule("addmm")
def addmm(site: Site) -> AxisSignature | None:
    """``beta self + alpha mat1 mat2``."""
    return contraction(
        {"mat1": ("mk",), "mat2": ("kn",), "self": (added(site, "mn"),)},
        "mn",
        lambda given: ("aten.mm.default", {"self": given["mat1"], "mat2": given["mat2"]}),
        sums=site.given["alpha"] == 1,
    )


@rule("baddbmm")
def baddbmm(site: Site) -> AxisSignature | None:
    """``beta self + alpha batch1 batch2``."""
    return contraction(
        {"batch1": ("bmk",), "batch2": ("bkn",), "self": (added(site, "bmn"),)},
        "bmn",
        lambda given: ("aten.bmm.default", {"self": given["batch1"], "mat2": given["batch2"]}),
        sums=site.given["alpha"] == 1,
    )


@rule("matmul")
def matmul(site: Site) -> AxisSignature | None:
    """Matrices by matrices, their leading axes broadcast."""
    left, right = site.shape("self"), site.shape("other")
    if min(len(left), len(right)) < 2:
        return None
    lead = site.result[:-2]
    batch = letters(len(lead))

    def leading(shape: Shape) -> str:
        offset = len(lead) - (len(shape) - 2)
        return "".join(
            batch[offset + axis] if extent == lead[offset + axis] else "."
            for axis, extent in enumerate(shape[:-2])
        )

    operands = {"self": (leading(left) + "mk",), "other": (leading(right) + "kn",)}
    return contraction(operands, batch + "mn")


@rule("einsum")
def einsum(site: Site) -> AxisSignature | None:
    """By its equation, if that is explicit and repeats no letter within a term."""
    equation = site.given["equation"].replace(" ", "")
    terms, arrow, result = equation.partition("->")
    words = (*terms.split(","), result)
    if not arrow or "." in equation or any(len(set(word)) < len(word) for word in words):
        return None
    return contraction({"tensors": words[:-1]}, result)


@rule("transformers.grouped_mm_fallback")
def grouped_mm(site: Site) -> AxisSignature | None:
    """Rows by the matrix of the group that each belongs to."""
    return contraction({"input": ("mk",), "weight": (".kn",)}, "mn")


@rule("_grouped_mm")
def torch_grouped_mm(site: Site) -> AxisSignature | None:
    """As above, as torch has it."""
    if len(site.shape("self")) != 2 or len(site.shape("mat2")) != 3 or site.shapes("bias"):
        return None
    return contraction({"self": ("mk",), "mat2": (".kn",)}, "mn")


@rule("conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d")
def convolution(site: Site) -> AxisSignature | None:
    """Images, output channels or contracted input channels; groups where there are several."""
    x, weight, groups = site.shape("input"), site.shape("weight"), site.given["groups"]
    if len(x) != len(weight):
        return None
    turned = "transpose" in site.op or site.given.get("transposed", False)
    space = len(x) - 2
    outputs = site.result[1]
    if groups == 1:
        bound = axes(("co" if turned else "oc") + "." * space)
        operands: dict[str, tuple[Axes, ...]] = {
            "input": (axes("nc" + "." * space),),
            "weight": (bound,),
            "bias": (axes("o"),) * len(site.shapes("bias")),
        }
        return AxisSignature(
            operands,
            (axes("no" + "." * space),),
            frozenset("c"),
            "convolution",
            bare=lambda given: ("", {**given, "bias": None}),
        )
    per_input, per_output = x[1] // groups, outputs // groups
    bound = (("g", per_input if turned else per_output), None, *(None,) * space)
    operands = {
        "input": ((("n", 1), ("g", per_input), *(None,) * space),),
        "weight": (bound,),
        "bias": ((("g", per_output),),) * len(site.shapes("bias")),
    }

    def fit(given: Given, shape: Shape) -> Given:
        return {**given, "groups": shape[1] // per_output}

    results = ((("n", 1), ("g", per_output), *(None,) * space),)
    return AxisSignature(operands, results, kind="convolution", fit=fit)


# Attention


@rule("scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu")
@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention(site: Site) -> AxisSignature | None:
    """Along the leading axes: of ``[batch, head, sequence, width]``, the first two."""
    query, key = site.shape("query"), site.shape("key")
    rank = len(query)
    if rank < 3 or len(key) != rank:
        return None
    groups = max(1, query[-3] // key[-3])
    lead: list[Axis] = [(f"{axis}", 1) for axis in range(rank - 3)]
    few: Axes = (*lead, ("heads", 1))
    many: Axes = (*lead, ("heads", groups))
    operands: dict[str, tuple[Axes, ...]] = {}
    for name in ("query", "grad_out", "out"):
        operands[name] = ((*many, None, None),) * len(site.shapes(name))
    for name in ("key", "value"):
        operands[name] = ((*few, None, None),)
    operands["logsumexp"] = ((*many, None),) * len(site.shapes("logsumexp"))
    scores = (*query[:-1], key[-2])
    operands["attn_mask"] = tuple(
        broadcast(shape, scores, (*many, None, None)) for shape in site.shapes("attn_mask")
    )
    if "grad_out" in site.given:
        results: tuple[Axes, ...] = tuple((*axes_, None, None) for axes_ in (many, few, few))
    else:
        results = ((*many, None, None), (*many, None))[: len(site.results)]
    return AxisSignature(operands, results, kind="attention")


# Along all axes but some


def along(site: Site, whole: tuple[int, ...], name: str = "self") -> AxisSignature | None:
    """Axes of one operand, those named apart; its results have the same, at the same places."""
    rank = len(site.shape(name))
    labels = positions(rank, *whole)
    if any(len(meta.shape) != rank for meta in site.results):
        return None
    return AxisSignature({name: (labels,)}, (labels,) * len(site.results))


def chosen(site: Site, rank: int, name: str = "dim") -> tuple[int, ...]:
    """Axes in an argument, all of them where it is left out or empty."""
    found = site.given.get(name)
    if found is None or found == ():
        return tuple(range(rank))
    dims = found if isinstance(found, tuple) else (found,)
    return tuple(dim % max(1, rank) for dim in dims)


@rule("softmax _softmax log_softmax _log_softmax cumsum cumprod logcumsumexp")
@rule("index_select glu flip roll slice split split_with_sizes chunk tensor_split sort topk narrow")
@rule("unsafe_split unsafe_chunk unsafe_split_with_sizes")
def other_axes(site: Site) -> AxisSignature | None:
    """All but the axis along which the operator works."""
    name = "dims" if "dims" in site.given else "dim"
    return along(site, chosen(site, len(site.shape("self")), name))


@rule("_softmax_backward_data _log_softmax_backward_data")
def softmax_backward(site: Site) -> AxisSignature | None:
    """All but the axis of the softmax."""
    labels = positions(len(site.result), site.given["dim"])
    return AxisSignature({"grad_output": (labels,), "output": (labels,)}, (labels,))


@rule("layer_norm native_layer_norm rms_norm _fused_rms_norm")
def normalization(site: Site) -> AxisSignature | None:
    """Before the normalized axes."""
    count = len(site.given["normalized_shape"])
    return along(site, tuple(range(-count, 0)), "input")


@rule("batch_norm _native_batch_norm_legit_no_training native_batch_norm")
@rule("_native_batch_norm_legit_functional")
def batch_norm(site: Site) -> AxisSignature | None:
    """Along the channels."""
    rank = len(site.shape("input"))
    channels = site.shape("input")[1]
    operands = {
        name: (axes("c"),) * len(site.shapes(name))
        for name in ("weight", "bias", "running_mean", "running_var")
    }
    labels = axes(".c" + "." * (rank - 2))
    rest = tuple(axes("c") if meta.shape == (channels,) else (None,) for meta in site.results[1:])
    return AxisSignature({"input": (labels,), **operands}, (labels, *rest))


@rule("group_norm")
def group_norm(site: Site) -> AxisSignature | None:
    """Along the images or the groups."""
    shape, groups = site.shape("input"), site.given["num_groups"]
    unit = shape[1] // groups
    labels: Axes = (("n", 1), ("g", unit), *(None,) * (len(shape) - 2))
    bound = {name: ((("g", unit),),) * len(site.shapes(name)) for name in ("weight", "bias")}

    def fit(given: Given, shape: Shape) -> Given:
        return {**given, "num_groups": shape[1] // unit}

    return AxisSignature({"input": (labels,), **bound}, (labels,), fit=fit)


@rule("max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d")
@rule("adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d _adaptive_avg_pool2d")
@rule("max_pool2d_with_indices upsample_nearest2d upsample_bilinear2d upsample_bicubic2d")
@rule("upsample_nearest1d upsample_linear1d pixel_shuffle reflection_pad2d replication_pad2d")
def pooling(site: Site) -> AxisSignature | None:
    """Along images and channels."""
    name = "self" if "self" in site.given else "input"
    rank = len(site.shape(name))
    if rank < 3 or site.shape(name)[:2] != site.result[:2]:
        return None
    return along(site, tuple(range(2, rank)), name)


@rule("constant_pad_nd pad")  # codespell:ignore
def padding(site: Site) -> AxisSignature | None:
    """Along the axes that are not padded."""
    return along(site, tuple(range(-(len(site.given["pad"]) // 2), 0)))


@rule("tril triu")
def triangle(site: Site) -> AxisSignature | None:
    """Along the leading axes."""
    return along(site, (-1, -2))


# Reductions


@rule("mean amax amin any all prod logsumexp argmax argmin max min var std var_mean")
def reduction(site: Site) -> AxisSignature | None:
    """Along what is kept; a sum also along what is not, as partial sums."""
    return reduced(site, sums=False)


@rule("sum")
def summation(site: Site) -> AxisSignature | None:
    """As other reductions, and partial sums along what is summed."""
    return reduced(site, sums=True)


def reduced(site: Site, *, sums: bool) -> AxisSignature | None:
    """Label a reduction."""
    if site.shapes("other"):
        return elementwise(site)
    rank = len(site.shape("self"))
    gone = set(chosen(site, rank))
    labels = positions(rank, *(() if sums else gone))
    kept = tuple(axis for axis in range(rank) if axis not in gone)
    result = tuple(labels[axis] for axis in kept)
    if site.given.get("keepdim"):
        result = tuple(None if axis in gone else labels[axis] for axis in range(rank))
    if any(len(meta.shape) != len(result) for meta in site.results):
        return None
    summed = frozenset(f"{axis}" for axis in gone) if sums else frozenset()
    return AxisSignature({"self": (labels,)}, (result,) * len(site.results), summed)


# Looking up


@rule("embedding")
def embedding(site: Site) -> AxisSignature | None:
    """Along the width of the table, or what is looked up."""
    labels = positions(len(site.shape("indices")))
    return AxisSignature(
        {"weight": (axes(".w"),), "indices": (labels,)}, ((*labels, ("w", 1)),), kind="table"
    )


@rule("index")
def index(site: Site) -> AxisSignature | None:
    """Along what follows a first axis that is looked up."""
    at = site.given["indices"]
    if len(at) != 1 or not isinstance(at[0], Ref):
        return None
    if site.meta(at[0]).dtype in ("bool", "uint8"):
        return None
    labels = positions(len(site.shape("self")), 0)
    asked = len(site.meta(at[0]).shape)
    return AxisSignature({"self": (labels,)}, ((None,) * asked + labels[1:],))


# Shapes


def regrouped(before: Shape, after: Shape) -> tuple[Axes, Axes]:
    """Label what stays together as a reshape splits and merges axes.

    Of each group of axes that holds the same entries before and after, the first that is longer
    than 1 can be cut, in steps that fall on entries of both.
    """
    old: list[Axis] = [None] * len(before)
    new: list[Axis] = [None] * len(after)
    left = [axis for axis, extent in enumerate(before) if extent != 1]
    right = [axis for axis, extent in enumerate(after) if extent != 1]
    i = j = 0
    while i < len(left) and j < len(right):
        first, second = left[i], right[j]
        a, b = before[first], after[second]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * before[left[i]], i + 1
            else:
                b, j = b * after[right[j]], j + 1
        steps = math.gcd(before[first], after[second])
        old[first] = (f"{first}", before[first] // steps)
        new[second] = (f"{first}", after[second] // steps)
    return tuple(old), tuple(new)


def reshaped(site: Site, **changes: Any) -> AxisSignature | None:
    """Label a reshape."""
    shape = site.shape("self")
    if math.prod(shape) == 0 or len(site.results) != 1:
        return None
    old, new = regrouped(shape, site.result)
    return AxisSignature({"self": (old,)}, (new,), **changes)


@rule("view reshape _unsafe_view flatten unflatten view_as _reshape_copy")
def view(site: Site) -> AxisSignature | None:
    """Another shape. Tiles are reshaped: their strides may not allow a view."""
    if "dtype" in site.given:
        return None

    def fit(given: Given, shape: Shape) -> Given:
        return {"self": given["self"], "shape": shape}

    return reshaped(site, fit=fit, op="aten.reshape.default")


@rule("unsqueeze squeeze")
def unit_axes(site: Site) -> AxisSignature | None:
    """Axes of extent 1 put in or left out."""
    return reshaped(site)


@rule("t transpose permute swapaxes movedim numpy_T mT adjoint")
def transposition(site: Site) -> AxisSignature | None:
    """Axes in another order."""
    rank = len(site.shape("self"))
    labels = positions(rank)
    if "dims" in site.given:
        order = [dim % rank for dim in site.given["dims"]]
    elif "dim0" in site.given or rank == 2:
        order = list(range(rank))
        first, second = site.given.get("dim0", 0) % rank, site.given.get("dim1", rank - 1) % rank
        order[first], order[second] = order[second], order[first]
    else:
        return None
    return AxisSignature({"self": (labels,)}, (tuple(labels[axis] for axis in order),))


@rule("expand repeat expand_as broadcast_to")
def expansion(site: Site) -> AxisSignature | None:
    """Along the axes that are not repeated."""
    key = next((name for name in ("size", "repeats") if name in site.given), "")
    if not key:
        return None
    labels = positions(len(site.result))
    operand = broadcast(site.shape("self"), site.result, labels)
    kept = {axis for axis in operand if axis}

    def fit(given: Given, shape: Shape) -> Given:
        return given if key == "repeats" else {**given, "size": shape}

    result = tuple(axis if axis in kept else None for axis in labels)
    return AxisSignature({"self": (operand,)}, (result,), fit=fit)


@rule("repeat_interleave")
def repeated(site: Site) -> AxisSignature | None:
    """Entries along one axis, each several times."""
    times, dim = site.given.get("repeats"), site.given.get("dim")
    if not isinstance(times, int) or dim is None or "self" not in site.given:
        return None
    labels = positions(len(site.result))
    dim %= len(labels)
    result = tuple(
        (label[0], times) if label and axis == dim else label for axis, label in enumerate(labels)
    )
    return AxisSignature({"self": (labels,)}, (result,))


@rule("select")
def selection(site: Site) -> AxisSignature | None:
    """Along the axes that are kept."""
    rank = len(site.shape("self"))
    dim = site.given["dim"] % rank
    labels = positions(rank, dim)
    return AxisSignature({"self": (labels,)}, (labels[:dim] + labels[dim + 1 :],))


@rule("slice_backward select_backward")
def selection_backward(site: Site) -> AxisSignature | None:
    """Along the axes that were kept whole."""
    rank = len(site.result)
    dim = site.given["dim"] % rank
    labels = positions(rank, dim)
    grad = labels if "step" in site.given else labels[:dim] + labels[dim + 1 :]

    def fit(given: Given, shape: Shape) -> Given:
        return {**given, "input_sizes": shape}

    return AxisSignature({"grad_output": (grad,)}, (labels,), fit=fit)


@rule("unbind")
def unbinding(site: Site) -> AxisSignature | None:
    """Along the axes that are kept."""
    rank = len(site.shape("self"))
    dim = site.given["dim"] % rank
    labels = positions(rank, dim)
    return AxisSignature(
        {"self": (labels,)}, (labels[:dim] + labels[dim + 1 :],) * len(site.results)
    )


@rule("cat concat concatenate")
def concatenation(site: Site) -> AxisSignature | None:
    """Along all axes but that which grows."""
    shapes = site.shapes("tensors")
    if any(len(shape) != len(site.result) for shape in shapes):
        return None
    labels = positions(len(site.result), site.given["dim"])
    return AxisSignature({"tensors": (labels,) * len(shapes)}, (labels,))


@rule("stack")
def stacking(site: Site) -> AxisSignature | None:
    """Along the axes that were there."""
    rank = len(site.result)
    dim = site.given["dim"] % rank
    labels = positions(rank, dim)
    parts = len(list(refs_in(site.given["tensors"])))
    return AxisSignature({"tensors": (labels[:dim] + labels[dim + 1 :],) * parts}, (labels,))


def operator(call: Call) -> str:
    """Name of a call's operator without overload, and without ``aten``."""
    return call.op.removeprefix("aten.").rpartition(".")[0]


class AxisSignatures:
    """Signature of the calls of a program, each found once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.known: dict[int, AxisSignature | None] = {}
        self.given: dict[int, Given] = {}

    def arguments(self, position: int) -> Given:
        """Arguments of a call by name, defaults included."""
        if position not in self.given:
            call = self.program.calls[position]
            self.given[position] = bind(call.op, call.args, call.kwargs)
        return self.given[position]

    def find(self, position: int) -> AxisSignature | None:
        """Signature of a call; None where its operator has none."""
        if position not in self.known:
            self.known[position] = self.make(position)
        return self.known[position]

    def make(self, position: int) -> AxisSignature | None:
        """Find the signature of a call by the rule of its operator."""
        call = self.program.calls[position]
        if not call.results or None in call.results or overload(call.op) is None:
            return None
        found = RULES.get(operator(call), elementwise if pointwise(call.op) else None)
        if found is None:
            return None
        results = tuple(meta for meta in call.results if meta is not None)
        return found(Site(call.op, self.arguments(position), results, self.program.meta))

    def operands(self, position: int) -> list[tuple[Ref, Axes]]:
        """Tensors that a call with a signature reads, in order, and their labels."""
        signature = self.find(position)
        assert signature is not None
        result = []
        for name, argument in self.arguments(position).items():
            labels = signature.operands.get(name)
            for number, ref in enumerate(refs_in(argument)):
                blank: Axes = (None,) * len(self.program.meta(ref).shape)
                result.append((ref, labels[number] if labels else blank))
        return result
