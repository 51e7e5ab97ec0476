"""What a runtime leaves out of its status in a cluster whose definition of RLJobs is older than it. Pure.

The API server refuses a whole server-side apply for one field that it does not know.
"""

import re

_UNDECLARED = re.compile(r"\.status\.training\.(\w+)[^:\s]*: field not declared in schema")


def undeclared(message: str) -> frozenset[str]:
    """Fields of `status.training`, in YAML's names, in which there is something that the API server does not
    know, by its refusal of an apply; empty where it refused for another reason."""
    return frozenset(_UNDECLARED.findall(message))
