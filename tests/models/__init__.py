"""Real models for tests: the catalog, skeletons, and their files and random inputs."""
