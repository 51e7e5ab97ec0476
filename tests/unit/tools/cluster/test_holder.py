"""Which folders a cluster may be started and ended in, and by whom."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import demo, holder
from tools.cluster.holder import STATE, FolderRefused
from tools.cluster.kubeconfig import write
from tools.cluster.processes import ProcessFailed

ROOT = Path(__file__).parents[4]


def precious(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "thesis.txt").write_text("years of work")
    return folder


def command(*words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tools.cluster", *map(str, words)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_folder_with_something_else_in_it_stays(tmp_path: Path) -> None:
    folder = precious(tmp_path / "precious")
    done = command("down", "--folder", folder)
    assert done.returncode == 1
    assert f"{folder} has something else in it than a cluster" in done.stderr
    assert "Traceback" not in done.stderr
    with pytest.raises(FolderRefused, match="something else"):
        holder.make(folder)
    assert (folder / "sub" / "thesis.txt").read_text() == "years of work"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = command("down", "--folder", file)
    assert (done.returncode, "is a file" in done.stderr, "Traceback" in done.stderr) == (1, True, False)
    assert file.exists()


def test_what_a_cluster_left_is_removed(tmp_path: Path) -> None:
    for begun in (False, True):
        folder = tmp_path / "cluster"
        holder.make(folder)
        (folder / "etcd").mkdir()
        if begun:
            holder.note(folder, os.getpid(), node=False)
        assert (holder.holder(folder) is not None) == begun
        holder.make(folder)
        assert [each.name for each in folder.iterdir()] == [STATE]
        holder.remove(folder)
        assert not folder.exists()
    holder.remove(folder)


def test_a_pid_that_another_process_has_is_no_holder(tmp_path: Path) -> None:
    holder.make(tmp_path / "cluster")
    holder.note(tmp_path / "cluster", os.getpid(), node=True)
    found = holder.holder(tmp_path / "cluster")
    assert found is not None
    assert (found.pid, found.node) == (os.getpid(), True)
    state = tmp_path / "cluster" / STATE
    state.write_text(json.dumps(json.loads(state.read_text()) | {"started": "1"}))
    assert holder.holder(tmp_path / "cluster") is None


def test_of_two_that_start_a_cluster_in_one_folder_one_does(tmp_path: Path) -> None:
    line = (
        "import sys; from pathlib import Path; from tools.cluster import holder\n"
        "with holder.starting(Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", line, tmp_path / "cluster"]
    with subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with (
            pytest.raises(FolderRefused, match="another process is starting"),
            holder.starting(tmp_path / "cluster"),
        ):
            pytest.fail("both start one")
        other.stdin.close()
        assert other.wait(30) == 0
    with holder.starting(tmp_path / "cluster"):
        pass


def test_a_job_is_not_waited_for_in_a_cluster_that_was_ended(tmp_path: Path) -> None:
    write(tmp_path / "kubeconfig", "https://127.0.0.1:9", "", "token")
    with pytest.raises(ProcessFailed, match="the cluster was ended meanwhile"):
        demo._follow(tmp_path, "copy")


def test_an_archive_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = command("load", tmp_path / "missing.tar", "image", "--folder", tmp_path)
    assert (done.returncode, "there is no such archive" in done.stderr) == (1, True)
