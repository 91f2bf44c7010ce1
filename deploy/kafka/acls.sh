#!/usr/bin/env bash
# Gives six users of Kafka the rights that Weir's services need, and no others (docs/how-to/own-cluster.md has them as a table):
# weir-monitor, weir-analyzer, weir-planner, weir-executor, weir-knowledge, and weir-topics, which creates the topics.
#
#   deploy/kafka/acls.sh --bootstrap-server kafka:9092 --command-config admin.properties
#
# All arguments go to kafka-acls.sh, which KAFKA_ACLS may name.
set -euo pipefail
connection=("$@")

allow() {
    "${KAFKA_ACLS:-kafka-acls.sh}" "${connection[@]}" --add --force --allow-principal "User:weir-$1" "${@:2}"
}

on_topics() {
    local user=$1 operation=$2 names=() each
    for each in "${@:3}"; do names+=(--topic "weir.$each"); done
    allow "$user" --operation "$operation" "${names[@]}"
}

allow topics --operation Create --operation Describe --operation DescribeConfigs --operation AlterConfigs \
    --resource-pattern-type prefixed --topic weir.
for service in monitor analyzer planner executor knowledge; do
    allow "$service" --operation Describe --operation DescribeConfigs --resource-pattern-type prefixed --topic weir.
    allow "$service" --operation Read --resource-pattern-type prefixed --group "weir-$service"
    # Its clients without a group have a name of this form: some brokers are asked for a coordinator all the same.
    allow "$service" --operation Describe --resource-pattern-type prefixed --group weir-reader-
    on_topics "$service" Write dead-letters.v1alpha1
done
allow knowledge --operation Describe --operation Write --transactional-id weir-knowledge-decider

on_topics monitor Read policies.v1alpha1
on_topics monitor Write observations.v1alpha1

on_topics analyzer Read observations.v1alpha1 analyses.v1alpha1 leases
on_topics analyzer Write analyses.v1alpha1

on_topics planner Read analyses.v1alpha1 observations.v1alpha1 plans.v1alpha1 outcomes.v1alpha1 planners.v1alpha1
on_topics planner Write plans.v1alpha1 planners.v1alpha1

on_topics executor Read plans.v1alpha1 outcomes.v1alpha1 policies.v1alpha1 analyses.v1alpha1
on_topics executor Write outcomes.v1alpha1

on_topics knowledge Read changes.v1alpha1 policies.v1alpha1 actions.v1alpha1 observations.v1alpha1 analyses.v1alpha1 \
    plans.v1alpha1 outcomes.v1alpha1 dead-letters.v1alpha1
on_topics knowledge Write changes.v1alpha1 policies.v1alpha1 actions.v1alpha1 observations.v1alpha1
