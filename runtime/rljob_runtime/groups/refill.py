"""How many groups are refused so that other prompts take their places (`rollout.filter`; DAPO's dynamic
sampling, arXiv:2503.14476). Which ones are to be is said by `groups/filter.py`.

Guarantees: a group is refused only where another prompt takes its place; between two steps no more than a
given number of groups are refused, for whatever reason, so that a step does not wait for ever where nearly
every group is to be refused. Pure: no clock, no I/O.
"""


class Refill:
    """Whether a group that is to be refused is."""

    def __init__(self, most: int, endless: bool) -> None:
        """`most`: groups that are refused between two steps. `endless`: whether there is always another
        prompt (`schedule.totalSteps`), so that the job trains as many groups as without refusals; otherwise
        (`schedule.epochs`) it trains as many fewer."""
        self.endless = endless
        self._most = most
        self._refused = 0
        """Since the last step was trained."""

    def refuse(self, prompts_left: int) -> bool:
        """Whether a group that is to be refused is; it then counts as such. `prompts_left`: those that
        have yet to be dispatched, where there is an end of them."""
        if self._refused == self._most or not (self.endless or prompts_left):
            return False
        self._refused += 1
        return True

    def step_trained(self) -> None:
        """Another step may refuse as many."""
        self._refused = 0
