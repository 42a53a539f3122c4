from __future__ import annotations

from hypothesis import settings

# No test fails because the machine is busy, or because the first example imports something.
settings.register_profile("doppler", deadline=None)
settings.load_profile("doppler")
