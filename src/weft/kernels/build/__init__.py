"""Building blocks of kernel templates: loop nests, epilogues, accumulators, windows."""
