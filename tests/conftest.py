"""One thread per test process: the networks are tiny, and two workers share two cores."""

import os
import signal

from hypothesis import HealthCheck, settings

# Before torch is imported, and inherited by the commands that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

# How long an example takes is a matter of the machine and of who else is on it.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A shell's background job ignores Ctrl-C, and so would all commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
