"""The notice that kernels are being compiled: once, and only when that takes a while."""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.core import event

from doppler.cli.compiling import NOTICE, Compiling


def said_while(patience: float, *kernels: Any) -> list[str]:
    said: list[str] = []
    with event.install_listener("numba:compile", Compiling(said.append, patience)):
        for kernel in kernels:
            kernel(1)
    return said


def fresh() -> Any:
    return njit(lambda value: value + 1)


def test_it_is_said_once() -> None:
    assert said_while(0.0, fresh(), fresh()) == [NOTICE]


def test_short_waits_are_not_explained() -> None:
    assert said_while(60.0, fresh(), fresh()) == []


def test_compiled_kernels_are_silent() -> None:
    kernel = fresh()
    kernel(1)
    assert said_while(0.0, kernel, kernel) == []
