"""The HorizontalPodAutoscaler's algorithm, autoscaling/v2, which `hpa` and `keda-kafka` share. Start with `v2.py`."""
