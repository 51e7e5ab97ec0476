"""One job from start to end: wires all parts, trains, keeps checkpoints, ends."""
