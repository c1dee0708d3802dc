"""Mechanisms: what to do to one window's table. Pure NumPy and Arrow; never Beam, never files.

`guarantee`            what a release promises
`keyed`                the secret turned into keys, identifiers and digests
`table`                exact tables, which never leave, and rows, which may
`noise`                the one source of noise and its sampler
`mechanism`            the interface
`registry`             finding mechanisms by name
`truncated_geometric`  the default gate
"""
