"""RLJobs for tests: a small valid one, and changes to it."""

import copy
from typing import Any

MINIMAL: dict[str, Any] = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "test"},
    "spec": {
        "accelerator": "cpu",
        "training": {
            "model": {"random": {}},
            "tokenizer": {"characters": {}},
            "data": {"generated": {"task": "copy"}, "maxPromptTokens": 16},
            "reward": {"function": "rljob_runtime.rewards.tasks:copy"},
            "rollout": {"maxResponseTokens": 8},
            "schedule": {"totalSteps": 4, "promptsPerBatch": 4},
        },
    },
}

REMOVED = object()
"""Given as a value to `job`: the field is taken out."""


def job(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """`MINIMAL` with values put at dotted paths: below spec, or from the root after a slash."""
    document = copy.deepcopy(MINIMAL)
    for path, value in (changes or {}).items():
        parts = path[1:].split(".") if path.startswith("/") else ["spec", *path.split(".")]
        target = document
        for part in parts[:-1]:
            target = target.setdefault(part, {})
        if value is REMOVED:
            del target[parts[-1]]
        else:
            target[parts[-1]] = copy.deepcopy(value)
    return document
