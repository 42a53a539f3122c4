"""docs/make.py as a module."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from documents import ROOT


@pytest.fixture(scope="session")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_make", ROOT / "docs/make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
