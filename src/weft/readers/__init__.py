"""How people's files become a model's inputs: pictures, sound, tables, texts, numbers, arrays.

Files are known by their content. What is done with one follows from the input's type and shape and from what the model
says of itself, and is told in words.
"""
