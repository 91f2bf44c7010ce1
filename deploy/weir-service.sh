#!/bin/sh
# A service, or the command line: the first word says which. Each service has its own port, so that all may share a network.
set -eu
case "${1:-}" in
  knowledge) port=8080 ;;
  monitor) port=8091 ;;
  planner) port=8093 ;;
  executor) port=8094 ;;
  weir)
    shift
    exec python -m weir_cli "$@"
    ;;
  ready)
    # Of the container's first process, which this script has given its port.
    port=$(tr '\0' '\n' </proc/1/environ | sed -n 's/^WEIR_HTTP_PORT=//p')
    WEIR_HTTP_PORT=${port:-${WEIR_HTTP_PORT:-}} exec python -m weir_runtime.probe
    ;;
  *)
    echo "weir: no service '${1:-}': this image has knowledge, monitor, planner, executor, and weir, the command line; the analyzer is the image weir-analyzer" >&2
    exit 2
    ;;
esac
name=$1
shift
export WEIR_HTTP_PORT="${WEIR_HTTP_PORT:-$port}"
exec python -m "weir_$name" "$@"
