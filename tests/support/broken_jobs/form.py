"""What a table of broken jobs says of each."""

from typing import Any

POOLS = "spec.pools"
TRAINING = "spec.training"

BrokenJobs = dict[str, tuple[dict[str, Any], str, str]]
"""What is wrong with each job: the changes that make it, the field that is named, words of the message."""
