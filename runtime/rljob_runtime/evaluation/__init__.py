"""When a policy is evaluated while it is trained, and what the rewards of an evaluation come to. Pure."""
