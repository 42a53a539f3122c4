"""Comparisons of methods, and the report that shows them."""
