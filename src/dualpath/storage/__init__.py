"""Where Full Blocks live between turns: one protocol, several backends, one conformance suite."""
