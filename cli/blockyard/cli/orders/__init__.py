"""Commands that have the leader give orders: drain, purge, prefetch."""
