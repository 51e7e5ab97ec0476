"""What is said of a run, for people who have an RLJob and no command line.

Guarantees: no option of `rljob run` is named to them; what is not about one stays as it is. The parts that
say so are the same on one machine and in a cluster, and know of neither.
"""

_IN_A_CLUSTER = (
    (", or beside it with another --output", ""),
    # A job of the same name has the same folder on the volume, and goes on with what is in it.
    ("with --resume", "by deleting the RLJob and applying it again"),
    ("with --restart", "as an RLJob of another name"),
)


def in_a_cluster(text: str) -> str:
    """The text with what `kubectl` can do in place of what `rljob run` can."""
    for option, instead in _IN_A_CLUSTER:
        text = text.replace(option, instead)
    return text
