"""What agents send and what became of it: traces, synthesis, replay rules, timelines, metrics; pure (paper A.3, A.4)."""
