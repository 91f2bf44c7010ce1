#!/usr/bin/env bash
# The analyzer, also without a first word; or a part of a Spark cluster with the same Python, code and jars as the driver.
set -eu
case "${1:-}" in
  master)
    shift
    exec spark-class org.apache.spark.deploy.master.Master "$@"
    ;;
  worker)
    shift
    exec spark-class org.apache.spark.deploy.worker.Worker "$@"
    ;;
  executor)
    # Spark on Kubernetes starts an executor's container with this word and these variables.
    options=()
    while IFS='=' read -r _ value; do options+=("$value"); done < <(env | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n || true)
    exec "$JAVA_HOME/bin/java" "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  '' | analyzer | -*)
    if [ "${1:-}" = analyzer ]; then shift; fi
    exec python -m weir_analyzer "$@"
    ;;
  *)
    echo "weir: no service '$1': this image has analyzer, and master, worker and executor of Spark; the others are in the image weir" >&2
    exit 2
    ;;
esac
