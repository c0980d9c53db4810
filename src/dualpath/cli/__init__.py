"""The ``dualpath`` command: one file a verb."""
