"""Actions on Kubernetes: how long a plan takes to be written and verified."""
