"""Ours and another trainer on the same GPUs with the same work: `python -m tests.bench.peers`.

`work` makes the model, the prompts and the length of each response; `ours` and `verl` run a contender and say
when each of its steps ended; `rates` (pure) makes figures of that. verl's settings are `verl_*.yaml`, each
with the reason for what is not its default.
"""
