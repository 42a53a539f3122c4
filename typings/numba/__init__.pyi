# numba ships no types. All that Doppler needs: a compiled kernel keeps its Python signature.
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")

@overload
def njit(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def njit(*signatures: str, **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

prange = range

def set_num_threads(n: int) -> None: ...
def get_num_threads() -> int: ...
def __getattr__(name: str) -> Any: ...
