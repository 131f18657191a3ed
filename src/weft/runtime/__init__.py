"""Loaded models at run time: options, devices, sessions, runs, profiles and progress."""
