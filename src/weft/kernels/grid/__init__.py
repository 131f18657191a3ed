"""Builders for devices whose lanes are threads: blocks of many of them, and many blocks."""
