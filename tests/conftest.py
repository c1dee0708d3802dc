"""Settings of all tests: a failure is a change of the code, never of luck or of a busy machine."""

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.load_profile("steady")
