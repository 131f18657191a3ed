"""A module that cannot be imported, as that of a package whose driver is missing."""

raise OSError("libacme.so is not there")
