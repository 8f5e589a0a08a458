"""What holds for all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

# Machines are noisy: that a test is slow is no fault of what it tests.
settings.register_profile("edgefleet", deadline=None)
settings.load_profile("edgefleet")

# A shell that starts the tests in the background has them, and all that they start, ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
