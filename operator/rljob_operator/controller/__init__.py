"""Wires decisions to the cluster: what is seen goes in, plans are carried out."""
