"""What the operator does about an RLJob: pure decisions, one file for each policy."""
