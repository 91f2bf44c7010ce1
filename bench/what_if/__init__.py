"""What `weir what-if` predicts, beside what the real job then does."""
