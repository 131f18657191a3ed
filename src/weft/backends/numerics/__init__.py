"""Numbers that the code of all devices is made of: polynomials of elementary functions, layouts of small floats."""
