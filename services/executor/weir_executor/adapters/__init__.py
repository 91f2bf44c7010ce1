"""One file per outside system; the in-memory twins pass the same tests as the real ones."""
