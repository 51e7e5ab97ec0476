"""How much room a job's checkpoints take on their disk; pure."""

from collections.abc import Sequence


def room_needed(each: int, keep: int, there: Sequence[int]) -> int:
    """Bytes that must be free for checkpoints of `each` bytes, of which the newest `keep` stay. `there`:
    bytes of those that lie there already, the oldest first; they go as newer ones are written."""
    held = sum(there)
    most = 0
    for written in range(1, keep + 2):
        # Surplus ones go once a new one is whole: beside the first one all are there.
        stay = there if written == 1 else there[max(0, len(there) - (keep + 1 - written)) :]
        most = max(most, written * each + sum(stay) - held)
    return most
