"""Instances behind the endpoint that a policy names as `spec.target.endpoint`; docs/reference/endpoint.openapi.json."""
