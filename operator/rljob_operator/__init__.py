"""The API-server side of an RLJob."""
