"""Models as C libraries: a header, an object file and weights, which programs without Python link and call."""
