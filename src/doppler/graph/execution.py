"""Running ops: the torch computation behind every spec.

Every function is pure: it writes to none of its inputs and shares no state, so that worker threads
may run ops at the same time. torch is imported when it is first needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from doppler.errors import GraphError, UnknownNameError
from doppler.graph.calls import ATEN, check_calls
from doppler.graph.graph import Graph
from doppler.graph.spec import OpSpec, TensorSpec, Tile
from doppler.installed_memory import installed_memory
from doppler.messages import shown_value

if TYPE_CHECKING:
    from torch import Generator, Tensor, dtype

#: What torch raises where it cannot compute an op.
FAULTS = (RuntimeError, IndexError, TypeError, ValueError, MemoryError)

Attributes = Mapping[str, Any]
Function = Callable[[Sequence["Tensor"], Attributes], "Tensor"]


def run_op(spec: OpSpec, inputs: Sequence[Any]) -> Any:
    """Compute one op; see :func:`compile_op`."""
    return compile_op(spec)(inputs)


def compile_op(spec: OpSpec, device: str = "cpu") -> Callable[[Sequence[Any]], Any]:
    """Look up once what an op computes.

    Parameters
    ----------
    spec : OpSpec
        What to compute. The attribute ``"views"``, if any, holds a shape (or None) for each
        input, to which it is reshaped first.
    device : str
        Name of torch's device on which it will run.

    Returns
    -------
    callable
        Takes one tensor for each of ``spec.inputs``, in order, and returns a tensor of shape
        ``spec.shape`` that shares no memory with them. It raises GraphError if the spec's
        attributes or the number of inputs do not suit the function, or the result has another
        shape than the spec says; and RuntimeError, from torch, if it cannot compute the op:
        shapes that do not match, or too little memory.
        Of calls of torch's operators (``"aten"``) the result may be a view of an input; where
        there are several it is a tuple, and such a tuple may be an input.

    Raises
    ------
    UnknownNameError
        If no function has the name.
    GraphError
        If a call does not suit its operator.
    """
    if spec.function == ATEN:
        from doppler.graph.aten import compile_calls

        check_calls(spec.attributes, len(spec.inputs))
        return compile_calls(spec.attributes, len(spec.inputs), device)
    function = FUNCTIONS.get(spec.function)
    if function is None:
        raise UnknownNameError("function of an op", spec.function, FUNCTIONS)
    attributes, shape = spec.attributes, tuple(spec.shape)
    views = attributes.get("views")

    def compute(inputs: Sequence[Tensor]) -> Tensor:
        if views is not None:
            inputs = [
                tensor if view is None else tensor.reshape(view)
                for tensor, view in zip(inputs, views, strict=True)
            ]
        try:
            result = function(inputs, attributes)
        except KeyError as error:
            raise GraphError(f"{spec.function} lacks the attribute {error}") from error
        except (IndexError, TypeError, ValueError) as error:
            raise GraphError(f"{spec.function} failed: {error}") from error
        if result.shape != shape:
            raise GraphError(
                f"{spec.function} gave a result of shape {tuple(result.shape)}, "
                f"the spec says {shape}"
            )
        return result

    return compute


def read_tile(tensors: Mapping[str, Tensor], tile: Tile) -> Tensor:
    """Take a tile out of a whole tensor, without a copy."""
    return tensors[tile.tensor][tuple(slice(low, high) for low, high in tile.slices)]


def make_tensors(graph: Graph, seed: int = 0, *, dtype: str = "float32") -> dict[str, Tensor]:
    """Fill the inputs and parameters of a graph with synthetic data.

    Parameters
    ----------
    graph : Graph
        Its ``tensors`` say how each is filled.
    seed : int
        The same seed gives the same data.
    dtype : str
        Name of a torch floating-point type, of the tensors that name none themselves.

    Returns
    -------
    dict of str to Tensor
        Every whole tensor, on the CPU.

    Raises
    ------
    UnknownNameError
        If a tensor is to be filled in an unknown way.
    GraphError
        If ``dtype`` is not the name of a torch floating-point type, or a tensor cannot be filled
        in its way or is larger than this machine's memory.
    """
    import torch

    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise GraphError(f"dtype {dtype!r} is not a floating-point type of torch")
    tensors = {}
    for number, (name, spec) in enumerate(sorted(graph.tensors.items())):
        way = spec.init.get("kind")
        filler = _FILLERS.get(way) if isinstance(way, str) else None
        if filler is None:
            raise UnknownNameError(f"initial value of {name}", way, _FILLERS)
        label = f"{graph.source or graph.name}: tensor {shown_value(name)}"
        own = _dtype(spec) or kind
        # Random numbers are made as float32 or int64.
        size = math.prod(spec.shape) * max(4, own.itemsize)
        if size > installed_memory():
            raise GraphError(f"{label} takes {size:.3g} B, more memory than this machine has")
        if way not in _ANY_TYPE and not (own.is_floating_point or own.is_complex):
            raise GraphError(
                f"{label}: the initial value {way!r} is for floating-point types, not for "
                f"{spec.dtype}; take {' or '.join(map(repr, _ANY_TYPE))}"
            )
        generator = torch.Generator().manual_seed((seed * 1_000_003 + number) % _SEEDS)
        try:
            tensors[name] = filler(spec, generator).to(own)
        except KeyError as error:
            raise GraphError(f"{label}: its initial value {way!r} lacks {error}") from None
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            reason = " ".join(str(error).split("\n")[0].split())
            raise GraphError(f"{label}: its initial value {way!r} is wrong: {reason}") from None
    return tensors


def check_executable(
    graph: Graph, tensors: Mapping[str, Tensor], most_bytes: float | None = None
) -> None:
    """Check calls of torch's operators before any op computes; see :mod:`doppler.graph.inference`.

    Parameters
    ----------
    graph : Graph
        With specs.
    tensors : mapping of str to Tensor
        Its whole tensors.
    most_bytes : float, optional
        No tensor may be larger; by default the memory of this machine.

    Raises
    ------
    GraphError
        If an op cannot run, or does not give what its spec says.
    """
    if any(spec.function == ATEN for spec in graph.specs or ()):
        from doppler.graph.inference import check_ops

        dtypes = {name: tensors[name].dtype for name in graph.tensors}
        check_ops(graph, dtypes, installed_memory() if most_bytes is None else most_bytes)


def run_sequential(
    graph: Graph, tensors: Mapping[str, Tensor], *, keep_all: bool = False
) -> dict[int, Tensor]:
    """Run a graph op by op in this thread.

    Parameters
    ----------
    graph : Graph
        A graph with executable specs.
    tensors : mapping of str to Tensor
        The whole inputs and parameters, as from :func:`make_tensors`.
    keep_all : bool
        Whether to return the output of every op; otherwise an output is freed after its last
        consumer.

    Returns
    -------
    dict of int to Tensor
        Outputs of the ops in ``graph.outputs``, or of all ops.

    Raises
    ------
    GraphError
        If the graph has no executable specs, or an op fails; the message names the op.
    """
    if graph.specs is None:
        raise GraphError(f"{graph.source or graph.name}: the graph has no executable ops")
    check_executable(graph, tensors)
    pointers, _ = graph.successors
    waiting = (pointers[1:] - pointers[:-1]).tolist()
    outputs: dict[int, Tensor] = {}
    for op in graph.topological_order.tolist():
        spec = graph.specs[op]
        inputs = [
            read_tile(tensors, source) if isinstance(source, Tile) else outputs[source]
            for source in spec.inputs
        ]
        try:
            outputs[op] = run_op(spec, inputs)
        except (*FAULTS, GraphError) as error:
            raise GraphError(f"{graph.name}: op {op} ({graph.names[op]}): {error}") from error
        if keep_all:
            continue
        for source in {source for source in spec.inputs if isinstance(source, int)}:
            waiting[source] -= 1
            if not waiting[source] and source not in graph.outputs:
                del outputs[source]
    if keep_all:
        return outputs
    return {op: outputs[op] for op in graph.outputs}


def assemble(graph: Graph, outputs: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """Put the whole results together from their tiles.

    Parameters
    ----------
    graph : Graph
        Its ``outputs`` say which op holds which tile.
    outputs : mapping of int to Tensor
        Outputs of at least these ops; they may lie on different devices.

    Returns
    -------
    dict of str to Tensor
        The results by name, on the CPU.

    Raises
    ------
    GraphError
        If the output of an op is missing.
    """
    shapes: dict[str, list[int]] = {}
    for tile in graph.outputs.values():
        shape = shapes.setdefault(tile.tensor, [0] * len(tile.slices))
        for axis, (_, stop) in enumerate(tile.slices):
            shape[axis] = max(shape[axis], stop)
    results: dict[str, Tensor] = {}
    for op, tile in graph.outputs.items():
        if op not in outputs:
            raise GraphError(f"{graph.name}: the output of op {op} ({graph.names[op]}) is missing")
        block = outputs[op]
        if tile.tensor not in results:
            results[tile.tensor] = block.new_empty(shapes[tile.tensor], device="cpu")
        read_tile(results, tile).copy_(block)
    return results


def _aligned(inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    """Bring every input to the axes of the first, with extent 1 where it has none."""
    axes = attributes.get("axes")
    if axes is None:
        return inputs
    rank = len(axes[0])
    aligned = []
    for tensor, own in zip(inputs, axes, strict=True):
        order = sorted(range(len(own)), key=own.__getitem__)
        index = tuple(slice(None) if axis in own else None for axis in range(rank))
        aligned.append(tensor.permute(order)[index])
    return aligned


def _einsum(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    import torch

    result: Tensor = torch.einsum(attributes["equation"], *inputs)
    if len(inputs) == 1:  # A mere transposition gives a view of the input.
        result = result.clone()
    scale = attributes.get("scale")
    return result if scale is None else result.mul_(scale)


def _add(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    left, right = _aligned(inputs, attributes)
    return left + right


def _multiply(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    left, right = _aligned(inputs, attributes)
    return left * right


def _divide(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    left, right = _aligned(inputs, attributes)
    return left / right


def _divide_or_zero(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    left, right = _aligned(inputs, attributes)
    return (left / right).masked_fill_(right == 0, 0.0)


def _maximum(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    left, right = inputs
    return left.maximum(right)


def _relu(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    return inputs[0].relu()


def _exp_difference(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    left, right = _aligned(inputs, attributes)
    return (left - right).exp_()


def _silu_multiply(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    gate, up = inputs
    return gate.sigmoid().mul_(gate).mul_(up)


def _sum(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    return inputs[0].sum(attributes["dim"])


def _amax(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    return inputs[0].amax(attributes["dim"])


def _square_sum(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    return inputs[0].square().sum(attributes["dim"])


def _softmax(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    return inputs[0].softmax(attributes["dim"])


def _rms_norm(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    x, weight = _aligned(inputs, attributes)
    mean = x.square().mean(attributes["dim"], keepdim=True)
    result: Tensor = x * (mean + attributes["epsilon"]).rsqrt_() * weight
    return result


def _rms_scale(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    x, squares, weight = _aligned(inputs, attributes)
    result: Tensor = x * (squares / attributes["size"] + attributes["epsilon"]).rsqrt_() * weight
    return result


def _rotary(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    """Rotate the pairs (i, i + half) of the last axis (Su et al., "RoFormer", 2021)."""
    import torch

    x, cosine, sine = _aligned(inputs, attributes)
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def _form(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    """Gather parts of the inputs in a box, reshape it, and keep a part of that.

    ``take``: the part of each input; ``box`` and ``put``, if there are several inputs: the shape
    of the box and where each part goes; ``view``: shape to give the box; ``keep``: part to keep.
    """
    taken = [tensor[_slices(part)] for tensor, part in zip(inputs, attributes["take"], strict=True)]
    if len(taken) == 1:
        block = taken[0]
    else:
        block = taken[0].new_empty(attributes["box"])
        for part, place in zip(taken, attributes["put"], strict=True):
            block[_slices(place)] = part
    block = block.reshape(attributes["view"])
    if "keep" in attributes:
        block = block[_slices(attributes["keep"])]
    # A slice would keep the memory of the whole tile alive for as long as it is needed.
    return block.clone() if len(taken) == 1 else block.contiguous()


def _slices(ranges: Sequence[Sequence[int]]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in ranges)


#: The computation behind each name that ``OpSpec.function`` may hold.
FUNCTIONS: Mapping[str, Function] = {
    "add": _add,
    "amax": _amax,
    "divide": _divide,
    "divide_or_zero": _divide_or_zero,
    "einsum": _einsum,
    "exp_difference": _exp_difference,
    "form": _form,
    "maximum": _maximum,
    "multiply": _multiply,
    "relu": _relu,
    "rms_norm": _rms_norm,
    "rms_scale": _rms_scale,
    "rotary": _rotary,
    "silu_multiply": _silu_multiply,
    "softmax": _softmax,
    "square_sum": _square_sum,
    "sum": _sum,
}


def _normal(spec: TensorSpec, generator: Generator) -> Tensor:
    import torch

    return torch.randn(spec.shape, generator=generator).mul_(spec.init["std"])


def _constant(spec: TensorSpec, generator: Generator) -> Tensor:
    import torch

    dtype = _dtype(spec)
    if dtype is None:
        return torch.full(spec.shape, float(spec.init["value"]))
    return torch.full(spec.shape, spec.init["value"], dtype=dtype)


def _angles(spec: TensorSpec) -> Tensor:
    import torch

    positions, width = spec.shape
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    frequencies = spec.init["base"] ** -exponents
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    return torch.cat((angles, angles), dim=-1)


def _rotary_cosine(spec: TensorSpec, generator: Generator) -> Tensor:
    return _angles(spec).cos()


def _rotary_sine(spec: TensorSpec, generator: Generator) -> Tensor:
    return _angles(spec).sin()


def _causal_mask(spec: TensorSpec, generator: Generator) -> Tensor:
    import torch

    return torch.full(spec.shape, float("-inf")).triu_(1)


def _one_hot_top_k(spec: TensorSpec, generator: Generator) -> Tensor:
    """Give every token the ``top_k`` experts it likes best among those with a free slot."""
    import torch

    experts, capacity, tokens = spec.shape
    liked = torch.rand((tokens, experts), generator=generator).argsort(1, descending=True).tolist()
    used = [0] * experts
    filled: tuple[list[int], list[int], list[int]] = ([], [], [])
    for token, order in enumerate(liked):
        free = [expert for expert in order if used[expert] < capacity]
        for expert in free[: spec.init["top_k"]]:
            filled[0].append(expert)
            filled[1].append(used[expert])
            filled[2].append(token)
            used[expert] += 1
    dispatch = torch.zeros(spec.shape)
    dispatch[filled] = 1.0
    return dispatch


def _integers(spec: TensorSpec, generator: Generator) -> Tensor:
    import torch

    return torch.randint(
        spec.init.get("low", 0), spec.init["high"], spec.shape, generator=generator
    )


def _values(spec: TensorSpec, generator: Generator) -> Tensor:
    import torch

    numbers = [float(v["float"]) if isinstance(v, Mapping) else v for v in spec.init["values"]]
    return torch.tensor(numbers, dtype=_dtype(spec)).reshape(spec.shape)


def _dtype(spec: TensorSpec) -> dtype | None:
    import torch

    return None if spec.dtype is None else getattr(torch, spec.dtype)


# Ways to fill a tensor of any type.
_ANY_TYPE = ("constant", "integers", "values")

# Seeds of torch are 64 bits.
_SEEDS = 2**64

_FILLERS: Mapping[str, Callable[[TensorSpec, Generator], Tensor]] = {
    "causal_mask": _causal_mask,
    "constant": _constant,
    "integers": _integers,
    "normal": _normal,
    "one_hot_top_k": _one_hot_top_k,
    "rotary_cosine": _rotary_cosine,
    "rotary_sine": _rotary_sine,
    "values": _values,
}
