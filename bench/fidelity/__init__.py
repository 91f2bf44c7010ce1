"""The simulator beside the real job: the same load, the same rescales, curves side by side."""
