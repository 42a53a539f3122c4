"""Devices work at the same time, keep each other busy, and leave no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from doppler.profiling.workers import Worker, Workers


def idle(worker: Worker) -> Callable[[], object]:
    return lambda: None


def test_names_tell_devices_apart() -> None:
    with Workers(("cpu",)) as one, Workers(("cpu", "cpu", "cpu")) as three:
        assert [worker.name for worker in one.all] == ["cpu"]
        assert [worker.name for worker in three.all] == ["cpu0", "cpu1", "cpu2"]


def test_each_device_has_a_thread_of_its_own_and_one_thread_of_torch() -> None:
    import torch

    with Workers(("cpu", "cpu")) as workers:
        found = workers.together(lambda w: (threading.get_ident(), torch.get_num_threads()), idle)
        again = workers.together(lambda w: (threading.get_ident(), torch.get_num_threads()), idle)
    assert found == again
    assert len({thread for thread, _ in found}) == 2
    assert {count for _, count in found} == {1}


def test_a_device_that_is_done_stays_busy_until_all_are() -> None:
    begun = threading.Event()
    hummed = threading.Event()

    def work(worker: Worker) -> str:
        if worker.name == "cpu0":
            begun.set()
        else:
            # Ends only if the other device goes on with what it does meanwhile.
            assert begun.wait(10)
            assert hummed.wait(10)
        return worker.name

    with Workers(("cpu", "cpu")) as workers:
        assert workers.together(work, lambda worker: hummed.set) == ["cpu0", "cpu1"]


def test_work_beside_busy_devices() -> None:
    hums = [threading.Event(), threading.Event()]

    def meanwhile(worker: Worker) -> Callable[[], object]:
        return hums[int(worker.name.removeprefix("cpu"))].set

    def work() -> bool:
        return all(hum.wait(10) for hum in hums)

    with Workers(("cpu", "cpu")) as workers:
        assert workers.beside(work, meanwhile)


@pytest.mark.parametrize("where", ["work", "meanwhile", "beside"])
def test_an_error_ends_everything_and_leaves_no_thread(where: str) -> None:
    before = threading.active_count()

    def fail(worker: Worker) -> Callable[[], object]:
        if worker.name == "cpu1":
            raise RuntimeError("no such thing")
        return lambda: None

    def long(worker: Worker) -> Callable[[], object]:
        if worker.name == "cpu1":
            raise RuntimeError("no such thing")
        while True:  # ends because nothing more is timed after an error
            worker.seconds(lambda: None)

    def endless() -> None:
        raise RuntimeError("no such thing")

    def measure() -> None:
        with Workers(("cpu", "cpu")) as workers:
            if where == "work":
                workers.together(long, idle)
            elif where == "meanwhile":
                workers.together(lambda worker: None, fail)
            else:
                workers.beside(endless, idle)

    with pytest.raises(RuntimeError, match="no such thing"):
        measure()
    assert threading.active_count() == before


def test_tensors_are_filled_whatever_their_size() -> None:
    with Workers(("cpu",)) as workers:
        worker = workers.all[0]
        pool = worker.pool(10)
        made = worker.tensor((3, 7), pool)
        assert made.shape == (3, 7)
        assert made.view(-1)[:10].equal(pool)
        assert made.view(-1)[20] == pool[0]
        assert worker.tensor((), pool) == pool[0]
        assert (pool != worker.pool(11)[:10]).sum() == 0
