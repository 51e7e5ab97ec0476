"""Manifests for people who have none yet: from a few answers, and from a launch script of verl.

Guarantees: nothing is run and no file is read or written here; what is written is valid as far as its fields
go, and says in comments what its values mean.
"""
