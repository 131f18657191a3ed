"""Plan the memory and the launches of a program for one set of sizes."""
