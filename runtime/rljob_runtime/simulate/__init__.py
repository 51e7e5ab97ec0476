"""Simulated time: a job's rollout and training by a cost model (`compare.py`, `job.py`, `batch.py`), and the
runtime's own loops under a clock that jumps (`virtual_loop.py`)."""
