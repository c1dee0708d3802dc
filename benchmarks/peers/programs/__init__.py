"""What is measured: one program a file, each run as a process in the environment of its contender.

A program reads the events from Parquet, releases or counts, and writes (key, value) as Parquet. Of the benchmark it
imports nothing but `job`, since a peer's environment holds the peer and nothing else.
"""
