"""Readers and writers of trace formats, one file a source."""
