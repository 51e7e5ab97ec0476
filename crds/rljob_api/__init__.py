"""The RLJob API: the single source of truth for fields, defaults, units and validation."""

from rljob_api.job import GROUP, KIND, VERSION, Metadata, RLJob, Spec

__all__ = ["GROUP", "KIND", "VERSION", "Metadata", "RLJob", "Spec"]
