"""What a job would do, for people: the simulator on a manifest, and its constants from a run."""
