"""The built-in planners, each written on the SDK as a user's would be and found by the entry points in
`pyproject.toml`."""
