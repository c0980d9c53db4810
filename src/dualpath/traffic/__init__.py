"""Executing plans: DRAM buffers, storage reads and write-back, layer streams; knows no engine (paper sections 2 and 5)."""
