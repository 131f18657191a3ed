"""What weft keeps on disk: files of its own, names of contents, compiled code and compiled models."""
