"""Bytes and lifetimes: where every value lies while a program runs."""
