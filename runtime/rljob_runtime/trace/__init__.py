"""What a run did, as it is recorded, analysed and reported.

- `record` writes while the job runs: events (what each worker did when), metrics (what each step achieved)
  and starts (when training began, and began again).
- `analyse` reads those files afterwards and makes figures of them.
- `report` makes one HTML page of the figures.
"""
