"""The disk tier's decisions: what is written, read back, moved on and given up. Files are the shell's.

directories   where copies lie: directories, segments, copies, and their bytes
tombs         what was purged before all was found
queue         which chunks wait to be written
operations    what is under way at the devices, each answered by exactly one event
spilling      which chunks are written, and how fast
promoting     which copies are read back
reclaiming    which segment makes room
tier          the machine of these parts
"""
