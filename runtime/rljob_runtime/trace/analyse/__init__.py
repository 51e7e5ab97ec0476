"""From what was recorded to figures. `analysis.analyse_run` is where to begin: it makes an `Analysis` of a
run's folder, with these parts:

- `event_files` reads events, step by step;
- `windows` decides which time belongs to which step, and which steps stand out;
- `usage` divides each worker's time into working, waiting and the rest; `cover` adds up intervals that
  overlap;
- `requests` puts responses together from the events of their attempts;
- `scheduling` counts what engines for long responses did, and which responses moved why;
- `predictions` compares what routing expected of responses with how long they became;
- `step_detail` keeps time lines of a few chosen steps;
- `sketch` holds distributions of millions of values in little memory.
"""
