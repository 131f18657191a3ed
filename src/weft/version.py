"""The version of weft, below all other modules."""

__version__ = "0.2.0"
