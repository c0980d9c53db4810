"""DualPath: both storage paths for multi-turn agents on prefill/decode-disaggregated clusters (arXiv 2602.21548)."""
