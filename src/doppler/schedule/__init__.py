"""The list scheduler: a schedule under construction, room for it, and how a device is chosen."""
