"""How long the programs of a cluster still take to build, for whoever waits.

An estimate: what each took on two free cores, stretched by as much as those before it took longer here.
"""

from collections.abc import Sequence

SECONDS = {
    # The first program compiles what the others of its family share.
    "kube-apiserver": 252,
    "kube-controller-manager": 57,
    "kube-scheduler": 5,
    "kubectl": 10,
    "etcd": 30,
    "kuberay": 125,
    "kwok": 74,
    "kubelet": 16,
    "kube-proxy": 7,
    "coredns": 116,
    "helm": 60,
    "pause": 1,
}


def seconds_left(built: Sequence[str], missing: Sequence[str], spent: float) -> float:
    """Of the programs that are missing, where those that were built now took `spent` seconds together."""
    expected = sum(SECONDS[each] for each in built)
    return sum(SECONDS[each] for each in missing) * (spent / expected if expected else 1.0)


def in_words(seconds: float) -> str:
    """Such as "about 4 min left"."""
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes else "less than a minute left"
