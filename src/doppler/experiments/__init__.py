"""The paper's evaluation and what goes beyond it: cells, their results, and the claims."""
