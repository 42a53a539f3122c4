"""Keeping a deployed policy improving on real devices: check, refine, compare, decide, report."""
