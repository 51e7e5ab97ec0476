"""Control groups that others remove meanwhile. Folders stand for groups."""

from pathlib import Path

import pytest

from tools.cluster import cgroups


@pytest.fixture
def hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cgroup.controllers").touch()  # version 2
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    return tmp_path


def test_a_group_goes_with_all_below_it(hierarchy: Path) -> None:
    (hierarchy / "rljob1" / "pods" / "one").mkdir(parents=True)
    (hierarchy / "rljob2").mkdir()
    cgroups.remove("rljob1")
    cgroups.remove("rljob1")
    assert [path.name for path in hierarchy.iterdir() if path.is_dir()] == ["rljob2"]


@pytest.mark.parametrize("inner", ["", "pods", "pods/one"])
def test_what_somebody_else_has_removed_is_removed(
    hierarchy: Path, monkeypatch: pytest.MonkeyPatch, inner: str
) -> None:
    """Just before it is asked for by this process."""
    (hierarchy / "rljob1" / "pods" / "one").mkdir(parents=True)
    gone = hierarchy / "rljob1" / inner
    remove = Path.rmdir

    def twice(path: Path) -> None:
        remove(path)
        if path == gone:
            remove(path)

    monkeypatch.setattr(Path, "rmdir", twice)
    cgroups.remove("rljob1")
    assert not (hierarchy / "rljob1").exists()


def test_a_group_that_goes_before_it_is_looked_into(hierarchy: Path) -> None:
    cgroups._remove(hierarchy / "rljob1")


def test_processes_that_run_on_are_told(hierarchy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hierarchy / "rljob1").mkdir()
    (hierarchy / "rljob1" / "cgroup.procs").touch()  # stands for what keeps the kernel from removing it
    monkeypatch.setattr(cgroups, "EMPTY_SECONDS", 0.1)
    with pytest.raises(TimeoutError, match=r"processes still run in the control group .*rljob1"):
        cgroups.remove("rljob1")
