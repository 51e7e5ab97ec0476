"""Virtual time: the runtime's own loops under a clock that jumps."""
