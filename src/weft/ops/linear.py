"""Matrix products and other linear algebra."""
