"""The list scheduler: a schedule under construction, room for it, and what a choice forces."""
