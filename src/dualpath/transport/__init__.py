"""Moving bytes between engines' memory: one-sided, batched; one protocol, one conformance suite."""
