"""`kubectl rljob`: RLJobs for people, from the terminal."""
