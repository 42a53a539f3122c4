"""Sharded programs compute what the whole ones do, and split what pays."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Builder, Tensors, captured, listing, run, with_tensors
from torch import nn

from doppler.capture.program import Program, Ref
from doppler.capture.sharding import find_sharding, shard_tensors, was_split
from doppler.capture.tensor_sharder import Pays
from doppler.capture.training import export_step
from doppler.errors import GraphError

ALL = Pays(flops=0, intensity=0, share=0, table_bytes=0)


def shard_all(program: Program, ways: int) -> Program:
    return shard_tensors(program, ways, least_flops=0, least_intensity=0, least_share=0)


def check(program: Program, sharded: Program, tensors: Tensors) -> None:
    """Same outputs, unique names, and nothing that is made for nobody."""
    for want, got in zip(run(program, tensors), run(sharded, tensors), strict=True):
        scale = float(want.abs().max()) if want.numel() else 1.0
        assert torch.allclose(want, got, rtol=0, atol=1e-5 * max(1.0, scale)), listing(sharded)
    names = [call.name for call in sharded.calls]
    assert len(set(names)) == len(names)
    assert len(set(map(repr, sharded.inputs))) == len(sharded.inputs)
    assert [output.name for output in sharded.outputs] == [
        output.name for output in program.outputs
    ]


def how(program: Program, ways: int) -> dict[str, tuple[str, int]]:
    return {
        split.name: (split.how, split.tiles) for split in find_sharding(program, ways, ALL).splits
    }


def parts_of(program: Program, weight: str) -> set[tuple[tuple[int, int], ...]]:
    return {read.slices for read in program.inputs if read.source == weight}


def made(program: Program, ending: str) -> list[str]:
    return [call.name for call in program.calls if ending in call.name]


class TestProducts:
    def mlp(self) -> tuple[Program, Tensors]:
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        return captured(model, torch.randn(3, 8))

    @pytest.mark.parametrize("ways", [2, 3, 4, 16, 100])
    def test_two_layers_meet_in_partial_sums(self, ways: int) -> None:
        program, tensors = self.mlp()
        sharded = shard_all(program, ways)
        check(program, sharded, tensors)
        tiles = min(ways, 16)
        assert how(program, ways) == {
            "0.linear": ("output", tiles),
            "2.linear": ("contracted", tiles),
        }
        assert not made(sharded, "gather")
        assert len(made(sharded, "sum")) == tiles - 1

    def test_each_tile_reads_its_own_part_of_every_weight(self) -> None:
        program, _ = self.mlp()
        sharded = shard_all(program, 2)
        assert parts_of(sharded, "0.weight") == {((0, 8), (0, 8)), ((8, 16), (0, 8))}
        assert parts_of(sharded, "0.bias") == {((0, 8),), ((8, 16),)}
        assert parts_of(sharded, "2.weight") == {((0, 8), (0, 8)), ((0, 8), (8, 16))}

    def test_tiles_say_what_they_are_tiles_of(self) -> None:
        program, _ = self.mlp()
        tiles = [call for call in shard_all(program, 2).calls if call.meta_op == "0.linear"]
        assert [(call.name, call.tile, call.module) for call in tiles] == [
            ("0.linear[0]", (0,), "0"),
            ("0.linear[1]", (1,), "0"),
        ]

    def test_partial_sums_are_added_by_a_balanced_tree(self) -> None:
        program, _ = self.mlp()
        depth: dict[str, int] = {}
        sharded = shard_all(program, 16)
        for call in sharded.calls:
            reads = [
                depth[sharded.calls[ref.value - len(sharded.inputs)].name]
                for ref in call.refs()
                if ref.value >= len(sharded.inputs)
            ]
            depth[call.name] = max(reads, default=0) + (".sum" in call.name)
        assert max(depth.values()) == 4

    @pytest.mark.parametrize(
        ("extent", "ways", "sizes"),
        [
            (12, 8, [2] * 6),
            (4, 3, [2, 2]),
            (7, 4, [1, 2, 2, 2]),
            (25, 4, [6, 6, 6, 7]),
            (3, 8, [1] * 3),
        ],
    )
    def test_tiles_differ_by_a_step_only_where_that_helps(
        self, extent: int, ways: int, sizes: list[int]
    ) -> None:
        program, tensors = captured(nn.Linear(8, extent), torch.randn(3, 8))
        sharded = shard_all(program, ways)
        check(program, sharded, tensors)
        (output,) = sharded.outputs
        assert [stop - start for _, (_, (start, stop)) in output.pieces] == sizes

    def test_an_output_is_returned_in_tiles(self) -> None:
        program, tensors = captured(nn.Linear(8, 16), torch.randn(3, 8))
        sharded = shard_all(program, 4)
        check(program, sharded, tensors)
        (output,) = sharded.outputs
        assert [slices[1] for _, slices in output.pieces] == [(0, 4), (4, 8), (8, 12), (12, 16)]
        assert len(sharded.calls) == 4

    def test_weights_that_are_turned_or_cast_are_so_in_parts(self) -> None:
        build = Builder()
        x, w, b = build.source((4, 8), "input"), build.source((12, 8)), build.source((12,))
        turned = build.call("t.default", build.call("clone.default", w))
        program = build.program(build.call("addmm.default", b, x, turned))
        sharded = shard_all(program, 3)
        check(program, sharded, build.tensors)
        assert parts_of(sharded, "parameter1") == {((4 * j, 4 * j + 4), (0, 8)) for j in range(3)}

    def test_sums_of_addmm_get_their_bias_once(self) -> None:
        build = Builder()
        x, w, v, b = (
            build.source((4, 8), "input"),
            build.source((8, 6)),
            build.source((6, 5)),
            build.source((5,)),
        )
        hidden = build.call("relu.default", build.call("mm.default", x, w))
        program = build.program(build.call("addmm.default", b, hidden, v))
        sharded = shard_all(program, 3)
        check(program, sharded, build.tensors)
        assert [call.op for call in sharded.calls if call.meta_op == "call2"] == [
            "aten.addmm.default",
            "aten.mm.default",
            "aten.mm.default",
        ]

    def test_scaled_addmm_is_not_summed(self) -> None:
        build = Builder()
        x, w, v, b = (
            build.source((4, 8), "input"),
            build.source((8, 6)),
            build.source((6, 5)),
            build.source((5,)),
        )
        hidden = build.call("mm.default", x, w)
        program = build.program(build.call("addmm.default", b, hidden, v, alpha=0.5))
        check(program, shard_all(program, 3), build.tensors)


class TestFallingBack:
    def test_what_has_no_rule_gets_the_gathered_value_once(self) -> None:
        build = Builder()
        x, w = build.source((4, 8), "input"), build.source((8, 8))
        hidden = build.call("linear.default", x, w)
        first = build.call("cumsum.default", hidden, 1)
        second = build.call("softmax.int", hidden, -1)
        program = build.program(first, second)
        sharded = shard_all(program, 2)
        check(program, sharded, build.tensors)
        assert made(sharded, "gather") == ["call0.gather"]

    def test_what_cannot_be_cut_is_left_whole(self) -> None:
        program, _ = captured(nn.Linear(8, 1), torch.randn(3, 8))
        assert shard_all(program, 4) is program
        assert not was_split(program)

    def test_a_norm_over_a_split_axis_gathers(self) -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8))
        program, tensors = captured(model, torch.randn(3, 8))
        check(program, shard_all(program, 2), tensors)

    def test_other_namespaces_are_left(self) -> None:
        build = Builder()
        x, w = build.source((4, 8), "input"), build.source((8, 8))
        program = build.program(build.call("linear.default", x, w))
        (call,) = program.calls
        other = Program(
            "other",
            program.sources,
            program.inputs,
            (
                type(call)(
                    "mine.linear.default",
                    *[
                        getattr(call, name)
                        for name in ("args", "kwargs", "results", "several", "name")
                    ],
                ),
            ),
            program.outputs,
        )
        assert shard_all(other, 2) is other

    @pytest.mark.parametrize("ways", [0, -3])
    def test_ways_below_one_are_refused(self, ways: int) -> None:
        with pytest.raises(GraphError, match=f"split tensors {ways} ways; give 1 or more"):
            shard_tensors(Builder().program(), ways)


class TestPaying:
    def test_small_chains_are_left_whole(self) -> None:
        program, _ = captured(nn.Linear(8, 16), torch.randn(3, 8))
        assert shard_tensors(program, 2) is program
        assert shard_tensors(program, 2, least_flops=700, least_intensity=0) is not program
        assert shard_tensors(program, 2, least_flops=800, least_intensity=0) is program

    def test_a_chain_counts_as_one(self) -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        program, _ = captured(model, torch.randn(3, 8))
        assert was_split(shard_tensors(program, 2, least_flops=1500, least_intensity=0))

    def test_wide_sums_are_not_made_of_narrow_tiles(self) -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 512))
        program, tensors = captured(model, torch.randn(3, 8))
        sharded = shard_all(program, 2)
        check(program, sharded, tensors)
        assert how(program, 2) == {"0.linear": ("output", 2), "2.linear": ("output", 2)}

    def test_partial_sums_are_laid_out_and_added_before_they_are_added_up(self) -> None:
        build = Builder()
        x, w, v = build.source((4, 8), "input"), build.source((6, 8)), build.source((8, 6))
        first, second = (
            build.call("relu.default", build.call("linear.default", x, w)) for _ in range(2)
        )
        left, right = (
            build.call("view.default", build.call("linear.default", each, v), (2, 2, 8))
            for each in (first, second)
        )
        program = build.program(build.call("add.Tensor", left, right))
        sharded = shard_all(program, 2)
        check(program, sharded, build.tensors)
        assert [name for name in made(sharded, ".sum")] == ["call8.sum[0]"]

    def test_no_gather_right_after_a_cheap_split(self) -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.Softmax(-1), nn.Linear(16, 8))
        program, _ = captured(model, torch.randn(64, 8))
        kept = shard_tensors(program, 2, least_flops=0, least_intensity=64)
        assert not made(kept, "gather")

    def test_one_chain_may_pay_beside_another_that_does_not(self) -> None:
        model = nn.Sequential(
            nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 8)
        )
        program, tensors = captured(model, torch.randn(4, 8))
        sharded = shard_tensors(program, 2, least_flops=10_000, least_intensity=0)
        check(program, sharded, tensors)
        assert {call.meta_op for call in sharded.calls if call.tile} == {
            "2.linear",
            "3.relu",
            "4.linear",
            "4.linear.sum",
        }

    def test_what_may_be_split_can_be_set(self) -> None:
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        program, tensors = captured(layer, torch.randn(2, 5, 32))
        for heads in (True, False):
            for linear in (True, False):
                pays = Pays(0, 0, heads=heads, linear=linear)
                sharding = find_sharding(program, 2, pays)
                check(program, sharding.program, tensors)
                ways = {split.how for split in sharding.splits}
                assert ("heads" in ways) == heads
                assert ("output" in ways) == linear


class Attention(nn.Module):
    """Packed projections, as many models have them."""

    def __init__(self, heads: int, groups: int, width: int) -> None:
        super().__init__()
        self.sizes = [heads * width, groups * width, groups * width]
        self.heads, self.groups, self.width = heads, groups, width
        self.packed = nn.Linear(16, sum(self.sizes))
        self.out = nn.Linear(heads * width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.view(*x.shape[:2], -1, self.width).transpose(1, 2)
            for part in self.packed(x).split(self.sizes, -1)
        )
        y = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.heads > self.groups
        )
        return self.out(y.transpose(1, 2).flatten(2))


class TestAttention:
    @pytest.mark.parametrize(("heads", "groups"), [(4, 4), (8, 4), (8, 2), (6, 1), (3, 3)])
    @pytest.mark.parametrize("ways", [2, 4])
    def test_packed_heads(self, heads: int, groups: int, ways: int) -> None:
        program, tensors = captured(Attention(heads, groups, 4), torch.randn(2, 5, 16))
        sharded = shard_all(program, ways)
        check(program, sharded, tensors)
        if heads == groups and heads % ways == 0:
            assert how(program, ways)["scaled_dot_product_attention"] == ("heads", ways)
            assert not made(sharded, "gather")
            assert not made(sharded, "slice[")
            tiles = [call.tile for call in sharded.calls if call.meta_op == "packed.linear"]
            assert tiles == [(part, tile) for part in range(3) for tile in range(ways)]

    def test_written_out(self) -> None:
        class Eager(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

            def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
                q, k, v = (
                    f(x).view(2, 5, 4, 4).permute(0, 2, 1, 3) for f in (self.q, self.k, self.v)
                )
                scores = (q @ k.transpose(-1, -2) / 2).masked_fill(mask, -1e9)
                y = torch.softmax(scores, -1) @ v
                return self.o(y.permute(0, 2, 1, 3).reshape(2, 5, 16))

        mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
        program, tensors = captured(Eager(), torch.randn(2, 5, 16), mask)
        sharded = shard_all(program, 4)
        check(program, sharded, tensors)
        assert [entry for entry in how(program, 4).values()] == [
            *[("output", 4)] * 3,
            *[("batch", 4)] * 2,
            ("contracted", 4),
        ]
        assert not made(sharded, "gather")

    @pytest.mark.parametrize("ways", [2, 4])
    def test_encoder_layer(self, ways: int) -> None:
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        program, tensors = captured(layer, torch.randn(2, 5, 32))
        check(program, shard_all(program, ways), tensors)


class TestExperts:
    def test_stacked_weights_are_split_along_the_stack(self) -> None:
        build = Builder()
        x = build.source((4, 6, 8), "input")
        up, down, gate = build.source((4, 8, 10)), build.source((4, 10, 8)), build.source((4, 1, 1))
        hidden = build.call("silu.default", build.call("bmm.default", x, up))
        out = build.call("mul.Tensor", build.call("bmm.default", hidden, down), gate)
        program = build.program(build.call("sum.dim_IntList", out, (0,)))
        sharded = shard_all(program, 2)
        check(program, sharded, build.tensors)
        assert how(program, 2) == {"call0": ("experts", 2), "call2": ("experts", 2)}
        assert parts_of(sharded, "parameter1") == {
            ((0, 2), (0, 8), (0, 10)),
            ((2, 4), (0, 8), (0, 10)),
        }
        assert made(sharded, "sum") == ["call4.sum[0]"]

    def test_einsum(self) -> None:
        class Experts(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up = nn.Parameter(torch.randn(4, 8, 10))
                self.down = nn.Parameter(torch.randn(4, 10, 8))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                hidden = torch.einsum("bsd,edf->besf", x, self.up).relu()
                return torch.einsum("besf,efd->bsd", hidden, self.down)

        program, tensors = captured(Experts(), torch.randn(2, 3, 8))
        check(program, shard_all(program, 2), tensors)
        assert how(program, 2) == {"einsum": ("experts", 2), "einsum_2": ("contracted", 2)}

    def test_a_loop_over_a_stack_reads_one_expert_at_a_time(self) -> None:
        class Experts(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up = nn.Parameter(torch.randn(4, 8, 10))
                self.down = nn.Parameter(torch.randn(4, 10, 16))
                self.last = nn.Linear(16, 8)
                self.head = nn.Linear(8, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = sum((x @ self.up[e]).relu() @ self.down[e] for e in range(4))
                return self.head(self.last(y))

        program, tensors = captured(Experts(), torch.randn(3, 8))
        sharded = shard_all(program, 2)
        check(program, sharded, tensors)
        assert parts_of(sharded, "up") == {((e, e + 1), (0, 8), (0, 10)) for e in range(4)}
        assert set(how(program, 2)) == {"last.linear", "head.linear"}
        assert set(how(program, 8)) > {"last.linear", "head.linear"}
        check(program, shard_all(program, 8), tensors)


class TestImages:
    def test_channels_pass_norms_and_pooling(self) -> None:
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=8), nn.GroupNorm(4, 8), nn.Conv2d(8, 6, 1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
        )  # fmt: skip
        program, tensors = captured(model, torch.randn(2, 3, 16, 16))
        sharded = shard_all(program, 2)
        check(program, sharded, tensors)
        assert list(how(program, 2).values()) == [
            ("output", 2),
            ("output", 2),
            ("contracted", 2),
            ("output", 2),
        ]
        assert not made(sharded, "gather")
        for weight in ("0.weight", "1.running_mean", "4.weight", "6.weight"):
            assert len(parts_of(sharded, weight)) == 2

    def test_skips_and_turned_convolutions(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.down, self.mid = nn.Conv2d(4, 8, 2, 2), nn.Conv2d(8, 8, 3, padding=1)
                self.up, self.out = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(12, 4, 1)
                self.wide = nn.Conv2d(8, 8, 3, padding=1, groups=2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.down(x).relu()
                y = self.up(self.wide(self.mid(y)))
                return self.out(torch.cat([x, y], 1)) + x

        program, tensors = captured(Net(), torch.randn(2, 4, 8, 8))
        for ways in (2, 4):
            check(program, shard_all(program, ways), tensors)


def test_gradients_are_split_as_what_they_belong_to() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).eval()
    x = torch.randn(3, 8)
    step = export_step(model, (x,), loss=lambda y: y.square().mean())
    program, tensors = with_tensors(step, model, (x,), {})
    sharded = shard_all(program, 2)
    check(program, sharded, tensors)
    assert not made(sharded, "gather")
    pieces = {output.name: len(output.pieces) for output in sharded.outputs}
    assert pieces["grad:0.weight"] == pieces["grad:0.bias"] == pieces["grad:2.weight"] == 2


class TestTables:
    def test_a_table_is_gathered_before_what_needs_all_of_it(self) -> None:
        model = nn.Sequential(nn.Embedding(10, 8), nn.ReLU(), nn.LayerNorm(8))
        program, tensors = captured(model, torch.tensor([[1, 2, 9]]))
        sharded = shard_tensors(program, 2, least_table_bytes=0)
        check(program, sharded, tensors)
        assert made(sharded, "gather") == ["0.embedding.gather"]
        assert not [call for call in sharded.calls if call.meta_op == "1.relu"]

    def test_large_tables_are_split_along_their_width(self) -> None:
        program, tensors = captured(nn.Embedding(10, 8), torch.tensor([[1, 2, 9]]))
        sharded = shard_tensors(program, 2, least_table_bytes=320)
        check(program, sharded, tensors)
        assert parts_of(sharded, "weight") == {((0, 10), (0, 4)), ((0, 10), (4, 8))}
        assert how(program, 2) == {"embedding": ("table", 2)}
        assert shard_tensors(program, 2, least_table_bytes=321) is program


def transformer(kind: str) -> tuple[Program, Tensors]:
    models = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 40, "hidden_size": 32}
    ids = torch.randint(0, 40, (2, 6))
    if kind == "gpt2":
        config = models.GPT2Config(
            n_embd=32, n_layer=2, n_head=4, vocab_size=40, bos_token_id=0, eos_token_id=0
        )
        return captured(models.GPT2LMHeadModel(config), input_ids=ids, use_cache=False)
    if kind == "bert":
        config = models.BertConfig(**sizes, intermediate_size=64)
        return captured(models.BertModel(config), input_ids=ids)
    config = models.LlamaConfig(**sizes, intermediate_size=64, num_key_value_heads=2)
    return captured(models.LlamaForCausalLM(config), input_ids=ids, use_cache=False)


class TestTransformers:
    @pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
    def test_layers_are_split_without_gathers(self, kind: str) -> None:
        program, tensors = transformer(kind)
        for ways in (2, 3, 4):
            sharded = shard_all(program, ways)
            check(program, sharded, tensors)
            # Sums after attention, of four heads, and after the feed-forward block of each layer.
            heads = 2 if ways == 3 else ways
            assert len(made(sharded, ".sum[")) == 2 * (heads - 1 + ways - 1)
            names = {call.name for call in program.calls}
            assert set(made(sharded, ".gather")) <= names
            split = {entry for entry in how(program, ways).values()}
            assert {("heads", heads), ("contracted", heads), ("contracted", ways)} <= split

    def test_no_weight_of_a_layer_is_read_whole(self) -> None:
        program, _ = transformer("llama")
        sharded = shard_all(program, 2)
        for name, source in sharded.sources.items():
            if "proj" in name:
                parts = parts_of(sharded, name)
                assert len(parts) == 2
                sizes = [math.prod(stop - start for start, stop in part) for part in parts]
                assert sum(sizes) == source.meta.elements


UNARY = ["relu.default", "gelu.default", "neg.default", "tanh.default", "alias.default"]


@st.composite
def chains(draw: st.DrawFn) -> tuple[Program, Tensors, int]:
    """Random programs of what tiles pass and of what they do not."""
    build = Builder(draw(st.integers(0, 100)))
    sizes = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
    shape = tuple(draw(st.lists(sizes, min_size=2, max_size=4)))
    value = build.source(shape, "input")
    # Weights, as the program has to name them before its calls: tried by their sizes.
    weights = [build.source((draw(sizes), draw(sizes))) for _ in range(4)]
    steps = draw(st.lists(st.integers(0, 16), min_size=2, max_size=9))
    first = draw(sizes)
    lead = build.source((first, shape[-1]))
    values = [build.call("linear.default", value, lead)]
    for step in steps:
        value = draw(st.sampled_from(values[-2:]))
        shape = build.meta(value).shape
        rank = len(shape)
        axis = draw(st.integers(0, rank - 1))
        made: Ref | None = None
        if step <= 2:
            made = build.call(draw(st.sampled_from(UNARY)), value)
        elif step <= 5:
            suited = [w for w in weights if build.meta(w).shape[1] == shape[-1]]
            if suited:
                made = build.call("linear.default", value, draw(st.sampled_from(suited)))
        elif step == 6:
            made = build.call("transpose.int", value, axis, draw(st.integers(0, rank - 1)))
        elif step == 7:
            factor = draw(st.sampled_from([f for f in (1, 2, 3, 4) if shape[axis] % f == 0]))
            parts = (factor, shape[axis] // factor)
            made = (
                build.call(
                    "view.default",
                    build.call(
                        "clone.default",
                        value,
                    ),
                    tuple(
                        n
                        for at, size in enumerate(shape)
                        for n in (parts if at == axis else (size,))
                    ),
                )
                if build.calls[-1].op != "aten.transpose.int" and rank < 5
                else None
            )
        elif step == 8 and rank > 2 and axis + 1 < rank:
            made = build.call(
                "reshape.default",
                value,
                (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]),
            )
        elif step == 9:
            others = [other for other in values if build.meta(other).shape == shape]
            made = build.call("add.Tensor", value, draw(st.sampled_from(others)))
        elif step == 10:
            made = build.call(draw(st.sampled_from(["softmax.int", "cumsum.default"])), value, axis)
        elif step == 11:
            made = build.call("sum.dim_IntList", value, (axis,), True)
        elif step == 12:
            start = draw(st.integers(0, shape[axis] - 1))
            made = build.call(
                "slice.Tensor", value, axis, start, draw(st.integers(start + 1, shape[axis] + 2))
            )
        elif step == 13:
            others = [
                other
                for other in values
                if len(build.meta(other).shape) == rank
                and build.meta(other).shape[:axis] + build.meta(other).shape[axis + 1 :]
                == shape[:axis] + shape[axis + 1 :]
            ]
            made = build.call("cat.default", (value, draw(st.sampled_from(others))), axis)
        elif step == 14:
            size = draw(st.integers(1, shape[axis]))
            parts_ = build.call("split.Tensor", value, size, axis)
            count = -(-shape[axis] // size)
            values += [Ref(parts_.value, item) for item in range(count)][-2:]
        elif step == 15 and rank > 1:
            made = build.call(
                "matmul.default", value, build.call("transpose.int", value, rank - 2, rank - 1)
            )
        elif step == 16 and rank > 2:
            made = build.call("select.int", value, axis, draw(st.integers(0, shape[axis] - 1)))
        if made is not None:
            values.append(made)
    return build.program(*values[-2:]), build.tensors, draw(st.integers(1, 5))


@settings(max_examples=100, deadline=None)
@given(chains())
def test_random_chains(chain: tuple[Program, Tensors, int]) -> None:
    program, tensors, ways = chain
    check(program, find_sharding(program, ways, ALL).program, tensors)
