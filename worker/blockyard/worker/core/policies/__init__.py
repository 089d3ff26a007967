"""Which chunk goes first when a slot is needed: one interface (base) and one file per policy."""
