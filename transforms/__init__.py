"""Beam transforms, one stage a file, in the order of the flow: decode → bound → count → gate → then → seal."""

from tidegate.transforms.decode import DeadLetter
from tidegate.transforms.problems import SafeError, SpecError
from tidegate.transforms.release import ROW_SCHEMA, Release
from tidegate.transforms.releases import PrivateReleases
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms, make_terms

__all__ = [
    "ROW_SCHEMA",
    "DeadLetter",
    "PrivateReleases",
    "Release",
    "SafeError",
    "Secret",
    "SpecError",
    "Terms",
    "make_terms",
]
