"""Learned methods of others, rebuilt as published: PLACETO, GDP and the paper's own DOPPLER."""
