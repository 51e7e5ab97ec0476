"""A manifest from a launch script of verl.

Guarantees: the script is read and never run; every override of it becomes a field, or is listed with its line
and with what its absence means.
"""
