"""The simulator compared with the real job: the same load, the same rescales, curves side by side."""
