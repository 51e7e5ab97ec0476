"""What `kubectl apply` keeps of an object in the object itself."""

import json
from typing import Any

ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
LIMIT = 256 * 1024
"""Bytes that the API server takes of all annotations of one object, names and values together."""


def last_applied(document: dict[str, Any]) -> str:
    """The annotation's value: the object as JSON without blanks, but for numbers as Go writes it."""
    metadata = {"annotations": {}, **document["metadata"]}
    text = json.dumps(
        {**document, "metadata": metadata}, separators=(",", ":"), sort_keys=True, ensure_ascii=False
    )
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text + "\n"
