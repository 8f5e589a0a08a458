"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# Machines are noisy: that a test is slow is no fault of what it tests.
settings.register_profile("edgefleet", deadline=None)
settings.load_profile("edgefleet")
