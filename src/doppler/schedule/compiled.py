"""How the helpers of the list scheduler are compiled."""

from __future__ import annotations

from doppler.kernels import kernel

# A kernel owns none of the arrays that it is handed and makes none of its own, so that there are no
# references to count: taking some 30 arrays out of tuples for every op costs more than placing it.
# numba has no public name for this option. What such a kernel calls must not allocate either,
# unless it is compiled as `allocating`.
lean = kernel(_nrt=False)
allocating = kernel(_nrt=True)
# The tuples are some 200 words, which a call would pass by value.
inlined = kernel(_nrt=False, inline="always")
