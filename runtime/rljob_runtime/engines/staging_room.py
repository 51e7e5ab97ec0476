"""Whether an engine has room for a second set of weights. Pure."""

from collections.abc import Sequence

from rljob_runtime.site.sizes import amounts
from rljob_runtime.weights.buckets import Bucket

_SHARE = 4
"""The second set may take this part of what is there for the KV cache: with less cache fewer requests run at
a time, all the time, and the second set saves a fraction of a second at each version."""


def second_set_bytes(weights: int, bucket: int) -> int:
    """What a second set takes: the weights, and two buckets on their way to it."""
    return weights + 2 * bucket


def largest_bucket(sent: Sequence[Bucket], limit: int) -> int:
    """Bytes of the largest bucket that a version can come in: sent, in these buckets, which have gaps between
    their tensors; or stored, in any order without gaps, of `limit` bytes at most or of a single tensor."""
    sizes = [tensor.size for bucket in sent for tensor in bucket.tensors]
    return max(min(limit, sum(sizes)), *sizes, *(bucket.size for bucket in sent))


def no_room(needed: int, available: int) -> str | None:
    """Why a second set of `needed` bytes has no room beside a KV cache, which would get `available` bytes
    without it; None where it has."""
    if needed * _SHARE <= available:
        return None
    takes, has = amounts(needed, available)
    return (
        f"a second set of weights takes {takes}, more than a quarter of the {has} that there are for the KV "
        "cache (raise vllm.gpuMemoryUtilization, or kvCacheGiB on CPUs)"
    )
