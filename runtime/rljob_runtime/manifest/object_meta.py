"""What of a manifest's metadata a cluster's API server would refuse or drop: each is a warning, for a run on
one machine has no use for it.

Pure.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.errors import Path, Problem, nearest

_KNOWN = [
    "name", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "generateName", "uid",
    "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
    "managedFields", "selfLink",
]  # fmt: skip
"""The fields of an ObjectMeta."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LONGEST, _LONGEST_PREFIX = 63, 253
_IN_WORDS = "a-z, A-Z, 0-9, -, _ and ., with a letter or digit at both ends"
_REFUSED = "a cluster's API server refuses it"


def metadata_doubts(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    """`metadata` as it is written in a manifest whose fields are valid."""
    for field in metadata:
        if field not in _KNOWN:
            near = nearest(field, _KNOWN)
            yield Problem(
                ("metadata", field),
                "is no field of Kubernetes' metadata: kubectl refuses it, and an API server drops it",
                near,
            )
    namespace = metadata.get("namespace")
    if isinstance(namespace, str) and namespace and not _fits(_NAMESPACE, namespace, _LONGEST):
        yield Problem(
            ("metadata", "namespace"),
            f"{namespace!r} is no name of a namespace, and {_REFUSED}: it has at most {_LONGEST} of a-z, 0-9 "
            "and -, with a letter or digit at both ends",
        )
    yield from _labels(metadata.get("labels"))
    yield from _annotations(metadata.get("annotations"))


def _labels(labels: Any) -> Iterator[Problem]:
    for key, value in labels.items() if isinstance(labels, Mapping) else ():
        path = ("metadata", "labels", key)
        yield from _key(path, key)
        if isinstance(value, str) and value and not _fits(_WORD, value, _LONGEST):
            yield Problem(
                path,
                f"{value[:80]!r} is no value of a label, and {_REFUSED}: it has at most {_LONGEST} of "
                f"{_IN_WORDS}",
            )


def _annotations(annotations: Any) -> Iterator[Problem]:
    path = ("metadata", "annotations")
    if annotations is None:
        return
    if not isinstance(annotations, Mapping):
        yield Problem(path, f"is no mapping of texts, and {_REFUSED}")
        return
    for key, value in annotations.items():
        # Annotations' keys are compared without regard to case.
        yield from _key((*path, key), key.lower())
        if value is not None and not isinstance(value, str):
            yield Problem((*path, key), f"is no text, and {_REFUSED}: quote it")


def _key(path: Path, key: str) -> Iterator[Problem]:
    prefix, slash, name = key.rpartition("/")
    if not _fits(_WORD, name, _LONGEST) or (slash and not _fits(_PREFIX, prefix, _LONGEST_PREFIX)):
        yield Problem(
            path,
            f"the key is no name to Kubernetes, and {_REFUSED}: it has at most {_LONGEST} of {_IN_WORDS}, "
            "and before that perhaps a domain and a /",
        )


def _fits(form: re.Pattern[str], text: str, longest: int) -> bool:
    return len(text) <= longest and form.fullmatch(text) is not None
