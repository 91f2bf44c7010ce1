#!/usr/bin/env bash
# KAFKA_LOG_DIRS becomes log.dirs: _ is ., __ is _, ___ is -. Without any, one node that is broker and controller.
set -eu
properties=/opt/kafka/config/server.properties
if env | grep -q '^KAFKA_PROCESS_ROLES='; then
  : > "$properties"
else
  cat > "$properties" <<'DEFAULTS'
node.id=1
process.roles=broker,controller
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
advertised.listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
controller.quorum.voters=1@localhost:9093
log.dirs=/tmp/kraft-combined-logs
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
DEFAULTS
fi
while IFS='=' read -r name value; do
  case "$name" in
    KAFKA_HEAP_OPTS | KAFKA_JVM_PERFORMANCE_OPTS | KAFKA_OPTS | KAFKA_JMX_OPTS | KAFKA_LOG4J_OPTS) continue ;;
  esac
  key=$(echo "${name#KAFKA_}" | tr '[:upper:]' '[:lower:]' | sed 's/___/-/g; s/__/%/g; s/_/./g; s/%/_/g')
  sed -i "/^${key//./\\.}=/d" "$properties"
  echo "$key=$value" >> "$properties"
done < <(env | grep '^KAFKA_')
java -Xmx128m -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format --ignore-formatted \
  -t "${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}" -c "$properties"
# shellcheck disable=SC2086
exec java ${KAFKA_HEAP_OPTS:--Xmx1G -Xms1G} ${KAFKA_JVM_PERFORMANCE_OPTS:--XX:+UseG1GC} ${KAFKA_OPTS:-} \
  -cp '/opt/kafka/libs/*' kafka.Kafka "$properties"
