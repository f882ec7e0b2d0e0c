"""Frames, codecs, links: how the processes of a dataflow talk."""
