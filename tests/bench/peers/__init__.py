"""Ours and other trainers on the same GPUs with the same work: `python -m tests.bench.peers` for what is
trained in a second, `python -m tests.bench.peers.learning` for what is learned from it.

`work` makes the model, the prompts and the length of each response, `copy_task` those of a task that is
learned; `ours`, `verl` and `trl` run a contender and say when each of its steps ended, others' by the output
that `peer` reads; `rates`, and `curves` and `learning_figures` (all pure), make figures of that. What runs
inside a peer is in `verl_inside`, `trl_inside` and `forced`. verl's settings are `verl_*.yaml`, TRL's
`trl_*.yaml`, each with its reasons.
"""
