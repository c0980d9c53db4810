"""The two read paths as data: plans of moves, traffic classes, and the no-bottleneck bounds (paper sections 2 to 5)."""
