"""Requests to the Kubernetes API server, for the operator, the plugin `kubectl rljob` and the driver.

`find_credentials` says where the server is and who asks, `Transport` sends one request and gives its answer
or an `ApiError`, `Resource` knows the paths. Nothing here knows what an RLJob is, or tries again later.
"""
