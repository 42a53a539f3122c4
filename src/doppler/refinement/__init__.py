"""Stage III: a deployed placement keeps improving on real devices, and nothing unproven is used."""
