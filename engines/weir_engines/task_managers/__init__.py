"""TaskManagers that Weir brings before a Flink job needs their slots: `spec.target.flink.taskManagers`."""
