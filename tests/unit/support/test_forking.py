"""Where forked processes look for modules: where a new Python would."""

import pytest

from tests.support.runtime.forking import search_path

OWN, LIBRARY = ["/python311.zip", "/lib/python3.11"], "/site-packages"


@pytest.mark.parametrize(
    ("named", "then"),
    [
        ([], []),
        (["/a", "/b"], ["/a", "/b"]),
        (["/a"], ["/b"]),
        # The folder that the server runs in, which is the first of its path, too.
        (["/root", "/a"], ["/root", "/a"]),
        (["/a", "/root"], []),
    ],
)
def test_the_standard_library_is_found_however_often_a_process_forks(
    monkeypatch: pytest.MonkeyPatch, named: list[str], then: list[str]
) -> None:
    path = ["/root", *named, *OWN, LIBRARY]
    for before, now in ((named, then), (then, then), (then, named)):
        monkeypatch.setenv("PYTHONPATH", ":".join(now))
        path = search_path("/root", path, before)
        assert path == ["/root", *now, *OWN, LIBRARY]
