"""Costmodel."""
