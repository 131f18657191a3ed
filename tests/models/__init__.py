"""Real models to test with: the list, the skeletons, and what turns both into files and random inputs."""
