"""Loggers beside the run's own files: W&B, MLflow, a webhook."""
