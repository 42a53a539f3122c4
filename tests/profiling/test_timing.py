from __future__ import annotations

from doppler.profiling.timing import Timing, pool


def test_an_outlier_moves_neither_median_nor_spread() -> None:
    assert Timing.of([1.0, 2.0, 3.0, 4.0, 1000.0]) == Timing(3.0, 1.0, 5)
    assert Timing.of([2.0]) == Timing(2.0, 0.0, 1)


def test_equal_devices_share_their_samples() -> None:
    found = pool(["cpu", "cuda:0", "cpu"], [{"a": [1.0]}, {"a": [9.0], "b": []}, {"a": [3.0]}])
    assert found == [
        {"a": Timing(2.0, 1.0, 2)},
        {"a": Timing(9.0, 0.0, 1)},
        {"a": Timing(2.0, 1.0, 2)},
    ]
