"""Garbage collections around imports of large packages."""

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from rljob_runtime.site.large_imports import large_imports


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """What other tests have frozen stays so."""
    assert gc.isenabled()
    yield
    gc.enable()


@pytest.mark.parametrize("imports", [True, False])
def test_nothing_is_collected_and_what_was_imported_is_passed_over_afterwards(
    monkeypatch: pytest.MonkeyPatch, imports: bool
) -> None:
    before = gc.get_freeze_count()
    with large_imports():
        assert not gc.isenabled()
        if imports:
            monkeypatch.setitem(sys.modules, "a_module_of_this_test", ModuleType("a_module_of_this_test"))
    assert gc.isenabled()
    # A process that imports nothing new keeps no garbage for it.
    assert (gc.get_freeze_count() > before) is imports


def test_also_after_an_import_that_failed() -> None:
    with pytest.raises(ModuleNotFoundError), large_imports():
        import there_is_no_such_package  # type: ignore[import-not-found] # noqa: F401
    assert gc.isenabled()


def test_who_wants_no_collections_gets_none() -> None:
    gc.disable()
    before = gc.get_freeze_count()
    with large_imports():
        assert not gc.isenabled()
    assert not gc.isenabled()
    # Of what was frozen before some may be freed meanwhile.
    assert gc.get_freeze_count() <= before
