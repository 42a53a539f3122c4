"""Answers by learning: features, encoder, the SEL and PLC heads, episodes and their likelihood."""
