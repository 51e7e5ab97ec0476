"""What people who wait for a build are told."""

import pytest

from tools.cluster.build_time import SECONDS, in_words, seconds_left
from tools.cluster.families import FAMILIES


def test_every_program_has_its_time():
    assert SECONDS.keys() == {name for family in FAMILIES for name in family.programs}


@pytest.mark.parametrize(
    ("built", "missing", "spent", "left"),
    [
        ([], ["kube-apiserver", "etcd"], 0, 282),
        (["kube-apiserver"], ["etcd"], 252, 30),
        (["kube-apiserver"], ["etcd", "kubectl"], 504, 80),
        (["kube-apiserver", "etcd"], [], 300, 0),
    ],
    ids=["nothing yet", "as fast as expected", "half as fast", "all"],
)
def test_what_is_left(built, missing, spent, left):
    assert seconds_left(built, missing, spent) == left


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(282, "about 5 min left"), (61, "about 1 min left"), (12, "less than a minute left")],
)
def test_in_words(seconds, words):
    assert in_words(seconds) == words
