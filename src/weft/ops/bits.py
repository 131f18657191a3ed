"""Bitwise ops."""
