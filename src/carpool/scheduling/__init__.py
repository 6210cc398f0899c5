"""Who computes what in the next step, and where its KV lives. Pure: no clock, no tensors."""
