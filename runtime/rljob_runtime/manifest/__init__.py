"""A manifest file becomes a checked job: its lines, its fields, what they refer to, what this machine has."""
