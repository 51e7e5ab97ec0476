"""What happened, as it is written: events and metrics."""
