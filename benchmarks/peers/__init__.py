"""tidegate next to other programs for the same task. Nothing is imported here: peers run in environments of their own."""
