"""Tokenizers, chat templates and incremental text; no torch, no sockets."""
