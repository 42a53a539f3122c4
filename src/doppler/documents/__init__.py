"""Documents in files: parsed strictly, checked against a schema, refused in one clear line."""
