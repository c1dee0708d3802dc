from setuptools import setup

setup(
    name="tidegate-at-least",
    version="0.1",
    py_modules=["at_least"],
    entry_points={"tidegate.mechanisms": ["at-least = at_least:AtLeast"]},
)
