"""Torch keeps the number of threads that it had, however calls overlap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from doppler import Cluster, Problem, place, workloads
from doppler.torch_threads import one_torch_thread, set_torch_threads

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _five() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    yield
    torch.set_num_threads(before)


def in_new_thread(function: Callable[[], int] = torch.get_num_threads) -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_other_threads_keep_theirs() -> None:
    with one_torch_thread():
        assert (torch.get_num_threads(), in_new_thread()) == (1, 5)
        with one_torch_thread():
            pass
        assert torch.get_num_threads() == 1
    assert (torch.get_num_threads(), in_new_thread()) == (5, 5)


def test_overlapping_blocks_leave_the_number_as_it_was() -> None:
    inside, leave = threading.Barrier(3), threading.Event()

    def enter() -> list[int]:
        with one_torch_thread():
            inside.wait()
            found = [torch.get_num_threads()]
            leave.wait()
        return [*found, torch.get_num_threads()]

    with ThreadPoolExecutor(3) as pool:
        with one_torch_thread():
            entered = [pool.submit(enter) for _ in range(2)]
            inside.wait()
        assert (torch.get_num_threads(), in_new_thread()) == (5, 5)
        leave.set()
        assert [each.result() for each in entered] == [[1, 5], [1, 5]]
    assert (torch.get_num_threads(), in_new_thread()) == (5, 5)


def test_the_number_of_a_thread_holds_from_its_first_function_on() -> None:
    def multiply() -> int:
        set_torch_threads(2)
        torch.ones(500, 500) @ torch.ones(500, 500)
        return torch.get_num_threads()

    assert (in_new_thread(multiply), torch.get_num_threads(), in_new_thread()) == (2, 5, 5)


def test_places_that_overlap_leave_the_number_as_it_was_and_agree() -> None:
    problem = Problem(workloads.chainmm(8, 8, 8, 8, 8, tiles=2), Cluster.uniform(2))
    with ThreadPoolExecutor(4) as pool:
        placed = list(pool.map(lambda _: place(problem, budget=0.0), range(8)))
        assert {*pool.map(lambda _: torch.get_num_threads(), range(8))} == {5}
    assert (torch.get_num_threads(), in_new_thread()) == (5, 5)
    assert all(np.array_equal(each.devices, placed[0].devices) for each in placed)
