"""The in-cluster side of an RLJob: engines generate, a queue carries groups, a trainer learns."""
