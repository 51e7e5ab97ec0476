"""Prompts: where they come from, and how text becomes tokens."""
