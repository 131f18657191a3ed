"""Images: decoding, cropping, suppressing overlapping boxes."""
