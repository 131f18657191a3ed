"""Moving data: transposing, joining, slicing, padding, repeating."""
