"""Talking to the Kubernetes API server.

`ApiClient` reads and writes objects, `Informer` keeps a small projection of many of them in memory,
`WorkQueue` calls a reconciler per key, `LeaderElection` lets one replica write, `EventRecorder` reports to
people, `HealthServer` answers probes and Prometheus. None of them knows what an RLJob is.
"""
