"""Templates for targets whose lanes are the elements of vectors."""
