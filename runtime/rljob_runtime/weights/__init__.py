"""How weights get from the trainer to the engines."""
