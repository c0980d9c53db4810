"""Agents replayed through a real cluster, and the reports of it (paper section 7)."""
