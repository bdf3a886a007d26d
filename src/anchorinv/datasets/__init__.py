"""Data sets: public ones, own recordings, synthetic signals; prepared folders that studies read."""
