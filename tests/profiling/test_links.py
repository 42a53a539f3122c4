from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler import Graph, workloads
from doppler.profiling import links
from doppler.profiling.links import SIZES, copy_sizes, fit_line, measure_link
from doppler.profiling.workers import Worker, Workers


@given(st.floats(1e-7, 1e-3), st.floats(1e6, 1e12))
def test_a_line_is_found_again(latency: float, bandwidth: float) -> None:
    seconds = [latency + size / bandwidth for size in SIZES]
    found = fit_line(SIZES, seconds)
    fitted = [found[0] + size / found[1] for size in SIZES]
    assert fitted == pytest.approx(seconds, rel=1e-6)


def test_neither_is_ever_negative() -> None:
    # Times that grow faster than the size, or shrink.
    latency, bandwidth = fit_line([1, 10, 100], [1.0, 20.0, 400.0])
    assert latency == 0.0
    assert 0 < bandwidth < math.inf
    assert fit_line([1, 10], [1.0, 0.5])[1] == math.inf


def test_a_link_of_this_machine() -> None:
    with Workers(("cpu", "cpu")) as workers:
        link = measure_link(workers, 0, 1, SIZES, repeats=1)
    assert set(link.copies) == set(SIZES)
    assert 0 <= link.latency < 1
    assert link.bandwidth > 0


def test_copies_are_as_large_as_what_the_graphs_put_out() -> None:
    assert copy_sizes([]) == SIZES
    assert copy_sizes([Graph.build(2, [], [], output_bytes=[0.0, 8.0])]) == SIZES
    graph = workloads.ffnn(64, 32, 64, 32)
    assert copy_sizes([graph]) == tuple(sorted({int(size) for size in graph.output_bytes}))
    many = Graph.build(100, [], [], output_bytes=[4.0 * i for i in range(1, 101)])
    sizes = copy_sizes([many, graph])
    assert len(sizes) == len(SIZES)
    assert sizes == tuple(sorted(set(sizes)))
    assert (sizes[0], sizes[-1]) == (4, max(400, int(graph.output_bytes.max())))


def test_few_sizes_are_copied_more_often() -> None:
    with Workers(("cpu", "cpu")) as workers:
        link = measure_link(workers, 1, 0, (4, 4096), repeats=2)
    assert {timing.count for timing in link.copies.values()} == {len(SIZES)}


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def fail() -> None:
    raise RuntimeError("no such thing")


@pytest.mark.parametrize(("fault", "kind"), [(interrupt, KeyboardInterrupt), (fail, RuntimeError)])
def test_a_copier_that_waits_for_its_device_ends_when_nobody_wakes_it(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None], kind: type[BaseException]
) -> None:
    # A process that a shell started in the background ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threads = threading.active_count()
    busy_work = links.busy_work

    def work(worker: Worker) -> Callable[[], object]:
        busy, left = busy_work(worker), iter(range(20))

        def some_ops() -> object:
            if next(left, None) is None:
                fault()
            return busy()

        return some_ops

    monkeypatch.setattr(links, "busy_work", work)
    try:
        with pytest.raises(kind), Workers(("cpu", "cpu")) as workers:
            measure_link(workers, 0, 1, SIZES, repeats=10_000)
    finally:
        signal.signal(signal.SIGINT, before)
    assert threading.active_count() == threads
