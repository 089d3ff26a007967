"""The disk tier's decisions: what is written, read back, moved on and given up. Files are the shell's.

directories   where copies lie: directories, segments, copies, and their bytes
breaker       when a device is left alone, and when it is tried again
operations    what is under way at the devices, each answered by exactly one event
spilling      which chunks are written, and how fast
promoting     which copies are read back, and who waits for them
reclaiming    which segment makes room
tier          the machine of these parts
"""
