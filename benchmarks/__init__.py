"""Speed as ratios: the textbook twin of ``tests/naive.py`` against ours, in the same process and run."""
