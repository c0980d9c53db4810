"""Pure bookkeeping of the KV cache: geometry, block keys, prefix index, block pools."""
