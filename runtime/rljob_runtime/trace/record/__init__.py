"""What is written into a run's folder while the job runs.

- `event_log`: what each worker did when, in `events/`; `event_ranks` numbers the files of the workers.
- `metrics_log`: what each step achieved, in `metrics.jsonl` and, by `tensorboard_file`, for TensorBoard.
- `length_log`: how long each response is, in `lengths.jsonl`.
- `start_log`: when training began, and each time that it began again, in `starts.jsonl`.
- `unsent_log`: what loggers did not get, in `unsent.jsonl`.
- `thinning`: what of these files goes where they grow too large; `event_room` does it for events.
"""
