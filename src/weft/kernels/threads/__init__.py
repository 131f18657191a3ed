"""Templates for targets whose lanes are threads: blocks of many of them, and many blocks."""
