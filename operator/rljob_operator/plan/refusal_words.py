"""Why something could not be made, in words that stay the same while the cause does. Pure.

Guarantees: of two tries that fail for the same cause the words are equal, so that they are written and told
once; what is left out says nothing of this job.
"""

import re

# As of the API server: ", used: requests.cpu=3,pods=9, limited: ...". Others' pods come and go meanwhile.
_USED = re.compile(r", used: \S+(?=, limited: )")
# Of a pod that KubeRay leaves the API server to name: each try has another one. The letters are all that the
# API server takes.
_MADE_UP = re.compile(r'(pods "[^"]+-)[bcdfghjklmnpqrstvwxz2456789]{5}(?=")')


def steady(words: str) -> str:
    """Another program's words in one line, without what changes with each try."""
    return _MADE_UP.sub(r"\1*", _USED.sub("", " ".join(words.split())))
