"""Files that survive a crash: journals and atomic replacement."""
