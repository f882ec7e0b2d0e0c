"""Small dataflows to read first; each is one file and runs by itself."""
