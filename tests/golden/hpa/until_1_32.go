package podautoscaler

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	v1 "k8s.io/api/core/v1"
)

const perDirectionTolerance = false

type calculator struct {
	inner *ReplicaCalculator
}

func newCalculator(client *reader, lister corelisters.PodLister, up, _ float64) calculator {
	return calculator{NewReplicaCalculator(client, lister, up, 5*time.Minute, 30*time.Second)}
}

func (c calculator) utilization(current, target int32) (int32, error) {
	n, _, _, _, err := c.inner.GetResourceReplicas(context.Background(), current, target, v1.ResourceCPU, "ns", labels.Everything(), "")
	return n, err
}

func (c calculator) raw(current int32, target int64) (int32, error) {
	n, _, _, err := c.inner.GetRawResourceReplicas(context.Background(), current, target, v1.ResourceCPU, "ns", labels.Everything(), "")
	return n, err
}

func (c calculator) pods(current int32, target int64) (int32, error) {
	n, _, _, err := c.inner.GetMetricReplicas(current, target, "m", "ns", labels.Everything(), labels.Everything())
	return n, err
}

func (c calculator) value(current int32, target int64) (int32, error) {
	n, _, _, err := c.inner.GetExternalMetricReplicas(current, target, "m", "ns", &metav1.LabelSelector{}, labels.Everything())
	return n, err
}

func (c calculator) average(status int32, target int64) (int32, error) {
	n, _, _, err := c.inner.GetExternalPerPodMetricReplicas(status, target, "m", "ns", &metav1.LabelSelector{})
	return n, err
}
