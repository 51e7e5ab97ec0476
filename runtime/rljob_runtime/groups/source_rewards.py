"""How well a step's responses did, by the source that their prompts are from (`data.sources`). Pure."""

from collections.abc import Callable, Iterable

from rljob_runtime.named_means import mean
from rljob_runtime.samples import Group


def source_rewards(
    groups: Iterable[Group], source_of: Callable[[int], str], pass_reward: float
) -> dict[str, dict[str, float]]:
    """Values of `metrics.jsonl`, each by the source's name: `source_groups`, how many groups of the step are
    from it; and over their responses that have a reward, `source_reward`, the mean, and `source_pass_rate`,
    the share whose reward is at least `pass_reward`. A source without any is left out. `source_of`: the name
    by `Group.row`."""
    counts: dict[str, float] = {}
    rewards: dict[str, list[float]] = {}
    for group in groups:
        name = source_of(group.row)
        counts[name] = counts.get(name, 0) + 1
        found = [sample.reward for sample in group.samples if sample.failure is None]
        if found:
            rewards.setdefault(name, []).extend(found)
    return {
        "source_groups": counts,
        "source_reward": {name: mean(found) for name, found in rewards.items()},
        "source_pass_rate": {
            name: sum(reward >= pass_reward for reward in found) / len(found)
            for name, found in rewards.items()
        },
    }
