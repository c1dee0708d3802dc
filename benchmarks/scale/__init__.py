"""How a run grows: with events, keys, units, windows, bounds and skew; and what that says about larger ones."""
