from pathlib import Path

import pytest

SHARED = Path(__file__).parents[4] / "shared" / "graphs"


@pytest.fixture(scope="session")
def shared_graphs() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the published sample graphs are not beside this checkout")
    return SHARED
