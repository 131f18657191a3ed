"""Read users' files as a model's inputs: images, audio, tables, texts, numbers, arrays.

The kind of a file follows from its content. How it is converted follows from the input's type and shape and from the
model's metadata, and is described in a note.
"""
