"""Which code `make mutants` changes."""

from tests.bench.mutants import PACKAGES, uncovered


def test_all_code_that_decides_is_in_a_package():
    assert uncovered() == []


def test_no_module_is_in_two_packages():
    patterns = [pattern for package in PACKAGES.values() for pattern in package.code]
    assert len(patterns) == len(set(patterns))
