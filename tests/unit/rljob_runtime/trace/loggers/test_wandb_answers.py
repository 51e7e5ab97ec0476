import pytest

from rljob_runtime.trace.loggers.wandb_answers import about_the_answer

KEY, ADDRESS, PROXY, EITHER = (
    "does not take the job's key",
    "nothing there takes",
    "a proxy",
    "see that the key",
)


@pytest.mark.parametrize(
    ("words", "to_do"),
    [
        ("no resume status: returned error 401: {}", KEY),
        ("no resume status: returned error 403: {}", KEY),
        ("returned error 403 Forbidden: permission denied", KEY),
        ("you may not (Error 404: Not Found)", ADDRESS),
        ("timed out while retrying: HTTP 407: who is there", PROXY),
        ("no resume status: returned error 400: {}", EITHER),
        # The words of its server alone, without a status.
        ("permission denied", EITHER),
        ("entity nobody not found", EITHER),
        ("<no message>", EITHER),
        ("no resume status: context deadline exceeded\nwhile retrying: HTTP 500: ", None),
        ("no resume status: context deadline exceeded\nwhile retrying: HTTP 429: ", None),
        ("no resume status: context deadline exceeded\nwhile retrying: connection refused", None),
        ("Timed out initializing run: context", None),
        ("returned error 501: {}", None),
    ],
)
def test_what_to_do_is_told_only_where_asking_again_is_of_no_use(words: str, to_do: str | None) -> None:
    found = about_the_answer(words)
    assert found is None if to_do is None else found is not None and to_do in found
