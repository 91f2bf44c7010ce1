#!/bin/sh
# As the official image does: options alone are redis-server's. Its configuration has no protected mode either.
set -e
case "${1:-}" in -*|*.conf) set -- redis-server "$@" ;; esac
if [ "$1" = redis-server ]; then shift; set -- redis-server "$@" --protected-mode no; fi
exec "$@"
