"""Saved programs: files with a model that was compiled ahead of time for one or several targets."""
