"""Experiments: running, storing and showing them."""
