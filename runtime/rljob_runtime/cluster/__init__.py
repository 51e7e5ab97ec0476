"""A job in a Kubernetes cluster: its RLJob, its status, its pods."""
