"""Transformers on PyTorch, layer by layer; the only place that looks inside a Layer Block."""
