"""The trial: the complete loop around a real job on this machine, sampled and judged."""
