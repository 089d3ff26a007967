"""Every byte of the disk tier's files, as values. Nothing here reads or writes a file.

values            what an extent is of and where it lies; imports nothing, so a core may use it
layout            fixed fields of a header, their checksum, and what is common to all headers
segment_header    first page of a segment
extent_header     page before each extent's payload
log               a segment's log: header, frames, records
names             names of files
errors            what can be wrong with bytes

docs/disk-format.md says the same in words; tests/disk/test_format_docs.py holds the two together.
"""
