"""Folders that Ray can, and cannot, keep its files in."""

from pathlib import Path

import pytest

from rljob_runtime.site.ray_folder import RayFolderUnfit, check_ray_folder, most_bytes

PID = 4194304
MOST_BYTES = most_bytes(PID)
LONG = "/tmp/" + "x" * (MOST_BYTES - 4)


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, None),
        ({"TMPDIR": "/tmp"}, None),
        ({"TMPDIR": LONG, "RAY_TMPDIR": "/tmp"}, None),
        ({"TMPDIR": LONG}, f"TMPDIR, {LONG}: it has {MOST_BYTES + 1} bytes, of which sockets leave it"),
        ({"RAY_TMPDIR": LONG, "TMPDIR": "/tmp"}, f"below RAY_TMPDIR, {LONG}"),
        ({"TMPDIR": "/tmp/ä"}, "TMPDIR, /tmp/ä: it has other characters than ASCII"),
        ({"TMPDIR": "/proc/nowhere"}, "/proc/nowhere: it takes no files (No such file or directory)"),
        ({"TMPDIR": "/proc/version"}, "it takes no files (Not a directory)"),
    ],
)
def test_what_ray_can_use(environment: dict[str, str], why: str | None) -> None:
    assert most_bytes(PID) == 39
    assert most_bytes(999) == 43
    if why is None:
        check_ray_folder(environment, PID)
        return
    with pytest.raises(RayFolderUnfit, match="set RAY_TMPDIR to another folder") as raised:
        check_ray_folder(environment, PID)
    assert why in str(raised.value)


def test_a_folder_of_the_most_bytes_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_ray_folder({"TMPDIR": "x" * MOST_BYTES}, PID)
    assert (tmp_path / ("x" * MOST_BYTES) / "ray").is_dir()
