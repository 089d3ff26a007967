"""Parts of `benchmarks/disk.py`: the tier under test, what it is compared with, and directories of many records."""
