"""Gathering, scattering and selecting by index."""
