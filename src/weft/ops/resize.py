"""Resizing images and volumes."""
