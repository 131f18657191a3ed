"""weft's files on disk: private files, content digests, compiled code and compiled models."""
