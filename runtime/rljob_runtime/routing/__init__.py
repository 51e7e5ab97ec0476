"""Which engine runs which request: pure decisions."""
