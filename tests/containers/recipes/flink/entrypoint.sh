#!/usr/bin/env bash
# Flink's own code works out each process's memory, as its scripts do.
set -eu
config=$FLINK_HOME/conf/config.yaml
cat > "$config" <<DEFAULTS
jobmanager.rpc.address: ${JOB_MANAGER_RPC_ADDRESS:-$(hostname -f)}
jobmanager.rpc.port: 6123
jobmanager.bind-host: 0.0.0.0
jobmanager.memory.process.size: 1600m
taskmanager.bind-host: 0.0.0.0
taskmanager.memory.process.size: 1728m
taskmanager.numberOfTaskSlots: ${TASK_MANAGER_NUMBER_OF_TASK_SLOTS:-1}
parallelism.default: 1
rest.address: 0.0.0.0
rest.bind-address: 0.0.0.0
blob.server.port: 6124
query.server.port: 6125
DEFAULTS
while IFS= read -r line; do
  line="${line#"${line%%[![:space:]]*}"}"
  case "$line" in '' | '#'*) continue ;; esac
  sed -i "/^${line%%:*}:/d" "$config"
  echo "$line" >> "$config"
done <<< "${FLINK_PROPERTIES:-}"

case "${1:-help}" in
  jobmanager) main=org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint ask=GET_JM_RESOURCE_PARAMS extra=() ;;
  taskmanager) main=org.apache.flink.runtime.taskexecutor.TaskManagerRunner ask=GET_TM_RESOURCE_PARAMS
    extra=(-D "taskmanager.host=$(hostname -i | cut -d' ' -f1)") ;;
  standalone-job) main=org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint
    ask=GET_JM_RESOURCE_PARAMS extra=(); export FLINK_LIB_DIR=$FLINK_HOME/lib ;;
  help) echo "jobmanager, standalone-job or taskmanager"; exit 0 ;;
  *) exec "$@" ;;
esac
shift
opens=()
for package in lang lang.reflect net io nio text time util util.concurrent util.concurrent.atomic util.concurrent.locks; do
  opens+=("--add-opens=java.base/java.$package=ALL-UNNAMED")
done
opens+=(--add-opens=java.base/sun.nio.ch=ALL-UNNAMED --add-opens=java.rmi/sun.rmi.registry=ALL-UNNAMED
  --add-exports=java.base/sun.net.util=ALL-UNNAMED)
answer=$(java "${opens[@]}" -Xmx64m -cp "$FLINK_HOME/lib/*" org.apache.flink.runtime.util.bash.BashJavaUtils \
  "$ask" --configDir "$FLINK_HOME/conf" "$@" | sed -n 's/^BASH_JAVA_UTILS_EXEC_RESULT://p')
read -ra jvm <<< "$(sed -n 1p <<< "$answer")"
read -ra memory <<< "$(sed -n 2p <<< "$answer")"
exec java "${opens[@]}" "${jvm[@]}" -XX:+UseSerialGC -cp "$FLINK_HOME/lib/*" "$main" \
  --configDir "$FLINK_HOME/conf" "${memory[@]}" "${extra[@]}" "$@"
