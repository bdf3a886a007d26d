"""One thread per test process: the networks are tiny, and two workers share two cores."""

import os

# Before torch is imported, and inherited by the commands that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
