"""Answers by search: moves from one placement to the next."""
