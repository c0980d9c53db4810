"""What compute costs: model shapes, attention time, hardware profiles; pure (paper sections 1 and 6)."""
