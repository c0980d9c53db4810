"""The adaptive scheduler: engine selection, read side, compute quota; pure policy (paper section 6)."""
