"""How many cores the torch functions of one thread use, without a say in those of others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_lock = threading.Lock()


def set_torch_threads(number: int) -> int:
    """Set how many cores torch may use for what the calling thread computes; return the old number.

    ``torch.set_num_threads`` alone sets it for every thread that has not used torch yet, too.
    """
    import torch

    before = torch.get_num_threads()
    if before == number:
        return before
    with _lock:
        usual: list[int] = []
        _in_new_thread(lambda: usual.append(torch.get_num_threads()))
        # Asked above, this thread keeps its number; else its first parallel function would take the
        # one that was set last, in whatever thread.
        torch.set_num_threads(number)
        _in_new_thread(lambda: torch.set_num_threads(*usual))
    return before


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch compute in the calling thread alone.

    Handing small tensors to other threads costs more than it saves, and far more where another
    process keeps a core busy: every layer then waits for a thread that is not running.
    """
    before = set_torch_threads(1)
    try:
        yield
    finally:
        set_torch_threads(before)


def _in_new_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
