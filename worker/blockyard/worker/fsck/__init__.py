"""`blockyard fsck`: what a directory of the disk tier holds, and whether it is what was written.

unchanging   the directory as the store sees it, but nothing in it can be changed
walk         every extent of every segment, read and judged
remarks      files that are not used as segments, and why
repair       what is damaged goes, by the store's own hand
report       all of that for people
main         the command: the lock, the order, the exit code
"""
