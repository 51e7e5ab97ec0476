"""The rollout workers of a job: started, watched, scaled, replaced, drained."""
