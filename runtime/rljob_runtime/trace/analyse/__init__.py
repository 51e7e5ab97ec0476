"""From recorded events and metrics to figures: usage, requests, steps."""
