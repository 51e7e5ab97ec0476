"""A run's events in a format of other tools."""
