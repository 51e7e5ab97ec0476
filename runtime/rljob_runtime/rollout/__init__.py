"""The loop that generates: it executes what routing and groups decide, and brings engines to new weights."""
