"""Measure what a job's functions take on this machine (``rlhfless profile``).

grid      which calls are made: a few sizes of each kind, far enough apart to tell coefficients
calls     makes them, through the platform and the messages of a real run
fits      from what they took to constants, and how well these say it
profile   all of it, in rounds
"""

from controller.profile.fits import Fit
from controller.profile.profile import Profile, profile_job

__all__ = ["Fit", "Profile", "profile_job"]
