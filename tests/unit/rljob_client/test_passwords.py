"""What is left of a text in which URLs hold passwords."""

import pytest

from rljob_client.passwords import without_passwords


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("407, url='http://me:S3cret@proxy:3128'", "407, url='http://***@proxy:3128'"),
        ("http://me:S3@cret'@[::1]:3128/a@b", "http://***@[::1]:3128/a@b"),
        ("http://me@proxy and https://you:p%2Fw@other", "http://***@proxy and https://***@other"),
        ("mail me@proxy, see https://proxy/a?b=c@d", "mail me@proxy, see https://proxy/a?b=c@d"),
        (
            "https://proxy?to=me@there https://proxy#me@here",
            "https://proxy?to=me@there https://proxy#me@here",
        ),
        ("https://api:6443 of me@proxy", "https://api:6443 of me@proxy"),
        ("", ""),
    ],
)
def test_a_text(text, left):
    assert without_passwords(text) == left
