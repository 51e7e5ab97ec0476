"""Keys, authenticated sockets and frame memory, shared by all that listens on the network."""
