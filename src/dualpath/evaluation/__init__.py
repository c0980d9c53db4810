"""The paper's evaluation, predicted by the simulator, and experiments beyond it (paper section 7)."""
