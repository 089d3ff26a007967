"""A worker's disk tier below its decisions: bytes into files and back, verified, counted, and found again.

io                        what the tier does with files, as the kernel answers it; loops over short answers
real, probe, buffers      that on real files: direct where a probe says so; memory that direct reads and writes take
format                    every byte of a directory's files, as values; reads and writes nothing
segments, segment         the store: extents into segments, verified reads, whole segments back
segment_log               one segment's log
budget                    bytes against the cap and the floor
recovery, scan            what a directory holds, from its logs and from the segments themselves
unchanging                a directory that can only be read
ownership, claims         one worker per directory; which of them a worker can start with
opening, device, side     a directory comes into use; one for the core; all of them
threads                   who calls all of this: a few threads, bounded queues

docs/disk-format.md describes the files. What to write and what to drop is decided above.
"""
