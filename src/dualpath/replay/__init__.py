"""Agents replayed through a real cluster, and the picture of its storage NICs (paper section 7)."""
