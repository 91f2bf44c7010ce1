"""Kubernetes: its API, workloads with a scale subresource, and their pods."""
