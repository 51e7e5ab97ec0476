import pytest

from rljob_operator.plan.refusal_words import steady

QUOTA = (
    'pods "learn-7k2bd-head-{name}" is forbidden: exceeded quota: team, '
    "requested: requests.cpu=3,pods=1, used: requests.cpu={cpu},pods={pods}, limited: requests.cpu=8,pods=9"
)


def test_tries_that_fail_for_the_same_cause_are_told_in_the_same_words() -> None:
    first = steady(QUOTA.format(name="x2b4z", cpu=7, pods=9))
    assert first == steady(QUOTA.format(name="qq9wr", cpu="7500m", pods=8))
    assert "learn-7k2bd-head-*" in first and first.endswith("limited: requests.cpu=8,pods=9")


@pytest.mark.parametrize(
    "words",
    [
        'pods "learn-head" is forbidden: no more of them',
        'pods "learn-house" not found',  # vowels are in no name that is made up
        'services "learn-x2b4z" already exists',
        "used: requests.cpu=7",
    ],
)
def test_other_words_stay(words: str) -> None:
    assert steady(words) == words


def test_words_are_one_line() -> None:
    assert steady("a webhook\n  said no\t") == "a webhook said no"
