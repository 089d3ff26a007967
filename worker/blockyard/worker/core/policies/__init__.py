"""Which chunk goes first when a slot is needed: one interface (base), one file per policy, names (registry)."""
