"""Sampling at computed positions: grids, regions, deformed windows."""
