"""Text for people, without the passwords that URLs hold. Pure.

Guarantees: of a URL in the text all is left but its user and password.
"""

import re

_USER = re.compile(r"(?<=://)[^/?#\s]*@")


def without_passwords(text: str) -> str:
    """The text, with `***@` for each `user:password@` of a URL in it."""
    return _USER.sub("***@", text)
