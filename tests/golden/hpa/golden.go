// Copied into the package podautoscaler, to call what it does not export.

package podautoscaler

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	metricsclient "k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
)

type podVector struct {
	Phase           string   `json:"phase"`
	Deleting        bool     `json:"deleting,omitempty"`
	Ready           *string  `json:"ready"`
	StartedAgo      *float64 `json:"started_ago"`
	TransitionAgo   float64  `json:"transition_ago"`
	Value           *int64   `json:"value_milli"`
	SampleAgo       float64  `json:"sample_ago,omitempty"`
	SampleWindow    float64  `json:"sample_window,omitempty"`
	Request         *int64   `json:"request_milli"`
	ReadyAndRunning bool     `json:"ready_and_running,omitempty"`
}

type metricVector struct {
	Kind          string      `json:"kind"`
	Current       int32       `json:"current"`
	Target        int64       `json:"target"`
	ToleranceUp   float64     `json:"tolerance_up"`
	ToleranceDown float64     `json:"tolerance_down"`
	Pods          []podVector `json:"pods,omitempty"`
	Series        []int64     `json:"series_milli,omitempty"`
	Replicas      *int32      `json:"replicas"`
	Error         string      `json:"error,omitempty"`
}

type policyVector struct {
	Type   string `json:"type"`
	Value  int32  `json:"value"`
	Period int32  `json:"periodSeconds"`
}

type rulesVector struct {
	Window   *int32         `json:"stabilizationWindowSeconds"`
	Select   string         `json:"selectPolicy"`
	Policies []policyVector `json:"policies"`
}

type step struct {
	Seconds  float64 `json:"seconds"`
	Proposal int32   `json:"proposal"`
	Want     int32   `json:"want"`
	Reason   string  `json:"reason"`
	Limited  string  `json:"limited"`
}

type sequenceVector struct {
	Name     string       `json:"name"`
	Start    int32        `json:"start"`
	Min      int32        `json:"min"`
	Max      int32        `json:"max"`
	Up       *rulesVector `json:"scaleUp"`
	Down     *rulesVector `json:"scaleDown"`
	Behavior bool         `json:"behavior"`
	Steps    []step       `json:"steps"`
}

// reader stands in for the metrics API.
type reader struct {
	pods   metricsclient.PodMetricsInfo
	series []int64
}

func (r *reader) GetResourceMetric(context.Context, v1.ResourceName, string, labels.Selector, string) (metricsclient.PodMetricsInfo, time.Time, error) {
	return r.pods, time.Now(), nil
}

func (r *reader) GetRawMetric(string, string, labels.Selector, labels.Selector) (metricsclient.PodMetricsInfo, time.Time, error) {
	return r.pods, time.Now(), nil
}

func (r *reader) GetObjectMetric(string, string, *autoscalingv2.CrossVersionObjectReference, labels.Selector) (int64, time.Time, error) {
	return r.series[0], time.Now(), nil
}

func (r *reader) GetExternalMetric(string, string, labels.Selector) ([]int64, time.Time, error) {
	return r.series, time.Now(), nil
}

func ago(now time.Time, seconds float64) time.Time {
	return now.Add(-time.Duration(seconds * float64(time.Second)))
}

// evaluate fills in what the calculator says.
func evaluate(m metricVector) metricVector {
	now := time.Now()
	client := &reader{pods: metricsclient.PodMetricsInfo{}, series: m.Series}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for i, p := range m.Pods {
		name := fmt.Sprintf("pod-%d", i)
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"},
			Status:     v1.PodStatus{Phase: v1.PodPhase(p.Phase)},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c"}}},
		}
		if p.Deleting {
			pod.DeletionTimestamp = &metav1.Time{Time: now}
		}
		if p.StartedAgo != nil {
			pod.Status.StartTime = &metav1.Time{Time: ago(now, *p.StartedAgo)}
		}
		if p.Ready != nil {
			pod.Status.Conditions = []v1.PodCondition{{
				Type:               v1.PodReady,
				Status:             v1.ConditionStatus(*p.Ready),
				LastTransitionTime: metav1.Time{Time: ago(now, p.TransitionAgo)},
			}}
		}
		if p.Request != nil {
			pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(*p.Request, resource.DecimalSI)}
		}
		if p.Value != nil {
			client.pods[name] = metricsclient.PodMetric{
				Value: *p.Value, Timestamp: ago(now, p.SampleAgo), Window: time.Duration(p.SampleWindow * float64(time.Second)),
			}
		}
		m.Pods[i].ReadyAndRunning = p.Phase == "Running" && p.Ready != nil && *p.Ready == "True"
		_ = indexer.Add(pod)
	}
	c := newCalculator(client, corelisters.NewPodLister(indexer), m.ToleranceUp, m.ToleranceDown)
	var n int32
	var err error
	switch m.Kind {
	case "utilization":
		n, err = c.utilization(m.Current, int32(m.Target))
	case "raw":
		n, err = c.raw(m.Current, m.Target)
	case "pods":
		n, err = c.pods(m.Current, m.Target)
	case "value":
		n, err = c.value(m.Current, m.Target)
	case "average":
		n, err = c.average(m.Current, m.Target)
	}
	if err != nil {
		m.Error = err.Error()
	} else {
		m.Replicas = &n
	}
	return m
}

func ptr[T any](v T) *T { return &v }

func tolerances(r *rand.Rand) (float64, float64) {
	choices := []float64{0.1, 0.1, 0.1, 0, 0.05, 0.2, 0.5}
	up := choices[r.Intn(len(choices))]
	down := choices[r.Intn(len(choices))]
	if r.Intn(3) == 0 && perDirectionTolerance {
		return up, down
	}
	return up, up
}

func randomPod(r *rand.Rand, mean int64) podVector {
	p := podVector{Phase: "Running", Ready: ptr("True"), StartedAgo: ptr(3600.0), TransitionAgo: 3500, SampleAgo: 10, SampleWindow: 30}
	p.Value = ptr(mean/2 + r.Int63n(mean+1))
	p.Request = ptr(int64(500 * (1 + r.Intn(4))))
	switch r.Intn(14) {
	case 0:
		p.Value = nil
	case 1:
		p.Phase = "Pending"
	case 2:
		p.Phase = "Failed"
	case 3:
		p.Deleting = true
	case 4:
		p.Ready = nil
	case 5:
		p.StartedAgo = nil
	case 6: // starting
		p.Ready, p.StartedAgo, p.TransitionAgo = ptr("False"), ptr(60.0), 60
	case 7: // just became ready: the sample is older than a window since
		p.StartedAgo, p.TransitionAgo, p.SampleAgo = ptr(100.0), 20, 5
	case 8: // became ready a window ago
		p.StartedAgo, p.TransitionAgo, p.SampleAgo = ptr(100.0), 50, 5
	case 9: // was never ready
		p.Ready, p.StartedAgo, p.TransitionAgo = ptr("False"), ptr(400.0), 390
	case 10: // was ready, is not any more
		p.Ready, p.StartedAgo, p.TransitionAgo = ptr("False"), ptr(4000.0), 100
	case 11:
		p.Ready = ptr("Unknown")
	}
	return p
}

func randomMetrics(r *rand.Rand) []metricVector {
	var all []metricVector
	for i := 0; i < 160; i++ {
		kind := []string{"utilization", "raw", "pods", "pods"}[r.Intn(4)]
		mean := int64(100 + r.Intn(1500))
		m := metricVector{Kind: kind, Current: int32(1 + r.Intn(20)), Target: mean * int64(25+r.Intn(150)) / 100}
		if kind == "utilization" {
			m.Target = int64(10 + r.Intn(140))
		}
		m.ToleranceUp, m.ToleranceDown = tolerances(r)
		pods := int(m.Current)
		if r.Intn(4) == 0 {
			pods = 1 + r.Intn(20)
		}
		clean := r.Intn(3) == 0
		for j := 0; j < pods; j++ {
			p := randomPod(r, mean)
			for clean && (p.Value == nil || p.Phase != "Running" || p.Deleting || p.Ready == nil || *p.Ready != "True" || p.StartedAgo == nil) {
				p = randomPod(r, mean)
			}
			m.Pods = append(m.Pods, p)
		}
		if r.Intn(25) == 0 && pods > 0 {
			m.Pods[0].Request = nil
		}
		all = append(all, evaluate(m))
	}
	for i := 0; i < 140; i++ {
		m := metricVector{Kind: []string{"average", "average", "value"}[r.Intn(3)], Current: int32(1 + r.Intn(70))}
		m.Target = int64(1 + r.Intn(200000))
		m.ToleranceUp, m.ToleranceDown = tolerances(r)
		base := m.Target
		if m.Kind == "average" {
			base *= int64(m.Current)
		}
		// Often at the border of the tolerance, where it is decided by one bit.
		factor := []int64{0, 90, 100, 110, 50, 200, int64(r.Intn(400)), int64(80 + r.Intn(40))}[r.Intn(8)]
		sum := base * factor / 100
		if r.Intn(4) == 0 {
			sum += int64(r.Intn(3) - 1)
		}
		m.Series = []int64{sum}
		if r.Intn(5) == 0 {
			m.Series = []int64{sum / 3, sum - sum/3}
		}
		if m.Kind == "value" {
			for j := 0; j < int(m.Current); j++ {
				p := podVector{Phase: "Running", Ready: ptr("True"), StartedAgo: ptr(3600.0), TransitionAgo: 3500}
				if r.Intn(12) == 0 {
					p.Ready = ptr("False")
				}
				m.Pods = append(m.Pods, p)
			}
		}
		all = append(all, evaluate(m))
	}
	return all
}

func plain(values ...int64) []podVector {
	var pods []podVector
	for _, v := range values {
		p := podVector{Phase: "Running", Ready: ptr("True"), StartedAgo: ptr(3600.0), TransitionAgo: 3500, SampleAgo: 10, SampleWindow: 30, Request: ptr(int64(1000))}
		if v >= 0 {
			p.Value = ptr(v)
		}
		pods = append(pods, p)
	}
	return pods
}

func edgeMetrics() []metricVector {
	pending := plain(2000, -1, -1)
	pending[1].Phase, pending[2].Phase = "Pending", "Pending"
	unready := plain(2000, 2000, 2000)
	unready[2].Ready, unready[2].StartedAgo, unready[2].TransitionAgo = ptr("False"), ptr(60.0), 60
	zeroRequests := plain(100, 100)
	zeroRequests[0].Request, zeroRequests[1].Request = ptr(int64(0)), ptr(int64(0))
	noRequest := plain(100, 100)
	noRequest[1].Request = nil
	failed := plain(1000)
	failed[0].Phase = "Failed"
	var all []metricVector
	add := func(kind string, current int32, target int64, pods []podVector, series ...int64) {
		all = append(all, evaluate(metricVector{Kind: kind, Current: current, Target: target, ToleranceUp: 0.1, ToleranceDown: 0.1, Pods: pods, Series: series}))
	}
	add("average", 10, 10000, nil, 110000)
	add("average", 10, 10000, nil, 110001)
	add("average", 10, 10000, nil, 90000)
	add("average", 10, 10000, nil, 89999)
	add("average", 63, 10000, nil, 640000)
	add("average", 58, 10000, nil, 640000)
	add("average", 10, 1000, nil, 11000)
	add("average", 10, 1000, nil, 9000)
	add("average", 20, 1000, nil, 21000)
	add("average", 0, 1000, nil, 5000)
	add("average", 0, 1000, nil, 0)
	add("average", 5, 1000, nil, 0)
	add("average", 5, 1000, nil, -3000)
	add("value", 3, 1000, plain(0, 0, 0), 1500)
	add("value", 3, 1000, plain(0, 0), 1500)
	add("value", 0, 1000, nil, 2500)
	add("value", 0, 1000, nil, 0)
	add("value", 3, 1000, nil, 2500)
	add("pods", 3, 1000, plain(1500, 1500, -1))
	add("pods", 3, 1000, plain(500, 500, -1))
	add("pods", 3, 1000, plain(3000, 3000, -1))
	add("pods", 3, 1000, plain(1000, 1000, -1))
	add("pods", 3, 1000, pending)
	add("pods", 3, 1000, plain(-1, -1, -1))
	add("pods", 3, 1000, nil)
	add("pods", 1, 1000, failed)
	add("pods", 3, 1000, unready)
	add("raw", 3, 1000, unready)
	add("raw", 3, 1000, plain(1100, 1100, 1101))
	add("raw", 3, 1000, plain(1101, 1101, 1101))
	add("utilization", 2, 55, plain(609, 609))
	add("utilization", 2, 60, plain(660, 660))
	add("utilization", 2, 60, plain(670, 670))
	add("utilization", 3, 150, plain(1000, 1000, -1))
	add("utilization", 3, 50, plain(200, 200, -1))
	add("utilization", 3, 50, plain(900, 900, -1))
	add("utilization", 2, 50, zeroRequests)
	add("utilization", 2, 50, noRequest)
	add("utilization", 2, 50, pending)
	add("utilization", 3, 50, unready)
	return all
}

func rules(r *rulesVector, down bool) *autoscalingv2.HPAScalingRules {
	if r == nil {
		return nil
	}
	to := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: r.Window}
	if r.Window == nil && !down {
		to.StabilizationWindowSeconds = ptr(int32(0))
	}
	to.SelectPolicy = ptr(autoscalingv2.ScalingPolicySelect(r.Select))
	for _, p := range r.Policies {
		to.Policies = append(to.Policies, autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.HPAScalingPolicyType(p.Type), Value: p.Value, PeriodSeconds: p.Period})
	}
	return to
}

// play runs the proposals through the controller. Time passes by ageing what it remembers.
func play(s sequenceVector) sequenceVector {
	a := &HorizontalController{
		downscaleStabilisationWindow: 300 * time.Second,
		recommendations:              map[string][]timestampedRecommendation{},
		scaleUpEvents:                map[string][]timestampedScaleEvent{},
		scaleDownEvents:              map[string][]timestampedScaleEvent{},
	}
	hpa := &autoscalingv2.HorizontalPodAutoscaler{}
	hpa.Spec.MaxReplicas = s.Max
	if s.Behavior {
		hpa.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(s.Up, false), ScaleDown: rules(s.Down, true)}
	}
	const key = "ns/a"
	current := s.Start
	a.recordInitialRecommendation(current, key)
	for i := range s.Steps {
		st := &s.Steps[i]
		passed := time.Duration(st.Seconds * float64(time.Second))
		for j := range a.recommendations[key] {
			a.recommendations[key][j].timestamp = a.recommendations[key][j].timestamp.Add(-passed)
		}
		for j := range a.scaleUpEvents[key] {
			a.scaleUpEvents[key][j].timestamp = a.scaleUpEvents[key][j].timestamp.Add(-passed)
		}
		for j := range a.scaleDownEvents[key] {
			a.scaleDownEvents[key][j].timestamp = a.scaleDownEvents[key][j].timestamp.Add(-passed)
		}
		hpa.Status.Conditions = nil
		want := current
		switch {
		case current > s.Max:
			want = s.Max
		case current < s.Min:
			want = s.Min
		case s.Behavior:
			want = a.normalizeDesiredReplicasWithBehaviors(hpa, key, current, st.Proposal, s.Min)
		default:
			want = a.normalizeDesiredReplicas(hpa, key, current, st.Proposal, s.Min)
		}
		for _, c := range hpa.Status.Conditions {
			if c.Type == autoscalingv2.AbleToScale {
				st.Reason = c.Reason
			} else if c.Type == autoscalingv2.ScalingLimited {
				st.Limited = c.Reason
			}
		}
		st.Want = want
		if want != current {
			a.storeScaleEvent(hpa.Spec.Behavior, key, current, want)
		}
		current = want
	}
	return s
}

func randomRules(r *rand.Rand, down bool) *rulesVector {
	to := &rulesVector{Select: []string{"Max", "Max", "Min", "Min", "Disabled"}[r.Intn(5)]}
	windows := []int32{0, 0, 60, 120, 300, 600}
	to.Window = ptr(windows[r.Intn(len(windows))])
	if down && r.Intn(3) == 0 {
		to.Window = nil
	}
	for i := 0; i < 1+r.Intn(3); i++ {
		p := policyVector{Type: "Pods", Value: int32(1 + r.Intn(8)), Period: []int32{15, 30, 60, 120, 300}[r.Intn(5)]}
		if r.Intn(2) == 0 {
			p.Type, p.Value = "Percent", int32(5+5*r.Intn(40))
			if down {
				p.Value = int32(5 + 5*r.Intn(20))
			}
		}
		to.Policies = append(to.Policies, p)
	}
	return to
}

func walk(r *rand.Rand, n int, max int32) []step {
	var steps []step
	level := int32(1 + r.Intn(int(max)))
	for i := 0; i < n; i++ {
		switch r.Intn(6) {
		case 0:
			level = int32(r.Intn(int(max) + 6))
		case 1, 2:
			level += int32(r.Intn(7)) - 3
		}
		if level < 0 {
			level = 0
		}
		// Half seconds off the round, so that no record is exactly as old as a window: the controller reads a clock in between.
		steps = append(steps, step{Seconds: []float64{5.5, 15.5, 15.5, 30.5, 61.5, 150.5}[r.Intn(6)], Proposal: level})
	}
	return steps
}

func defaults() (*rulesVector, *rulesVector) {
	return &rulesVector{Window: ptr(int32(0)), Select: "Max", Policies: []policyVector{{"Pods", 4, 15}, {"Percent", 100, 15}}},
		&rulesVector{Select: "Max", Policies: []policyVector{{"Percent", 100, 15}}}
}

func sequences(r *rand.Rand) []sequenceVector {
	var all []sequenceVector
	up, down := defaults()
	edges := []sequenceVector{
		{Name: "no behavior, from 1", Start: 1, Min: 1, Max: 50, Steps: []step{{1.5, 20, 0, "", ""}}},
		{Name: "no behavior, from 5", Start: 5, Min: 1, Max: 50, Steps: []step{{1.5, 20, 0, "", ""}}},
		{Name: "no behavior, down at once after the window", Start: 10, Min: 2, Max: 50, Steps: []step{{301.5, 1, 0, "", ""}}},
		{Name: "defaults, records 10 and 8", Start: 10, Min: 1, Max: 50, Behavior: true, Up: up, Down: down, Steps: []step{{60.5, 8, 0, "", ""}, {60.5, 6, 0, "", ""}, {200.5, 6, 0, "", ""}, {61.5, 6, 0, "", ""}}},
		{Name: "up window of 60 s", Start: 4, Min: 1, Max: 50, Behavior: true, Up: &rulesVector{Window: ptr(int32(60)), Select: "Max", Policies: up.Policies}, Down: down, Steps: []step{{10.5, 9, 0, "", ""}, {40.5, 9, 0, "", ""}, {10.5, 9, 0, "", ""}}},
		{Name: "defaults, 4 added 10 s ago", Start: 6, Min: 1, Max: 100, Behavior: true, Up: up, Down: down, Steps: []step{{1.5, 10, 0, "", ""}, {10.5, 30, 0, "", ""}, {15.5, 30, 0, "", ""}}},
		{Name: "10 percent at 50 and 100", Start: 50, Min: 1, Max: 200, Behavior: true, Up: &rulesVector{Window: ptr(int32(0)), Select: "Max", Policies: []policyVector{{"Percent", 10, 15}}}, Down: down, Steps: []step{{1.5, 200, 0, "", ""}, {16.5, 100, 0, "", ""}, {400.5, 200, 0, "", ""}}},
		{Name: "above max and below min", Start: 60, Min: 5, Max: 50, Behavior: true, Up: up, Down: down, Steps: []step{{1.5, 20, 0, "", ""}, {301.5, 20, 0, "", ""}, {301.5, 0, 0, "", ""}}},
	}
	all = append(all, edges...)
	for i := 0; i < 60; i++ {
		max := int32(5 + r.Intn(80))
		s := sequenceVector{Name: fmt.Sprintf("random %d", i), Min: int32(1 + r.Intn(4)), Max: max, Start: int32(1 + r.Intn(int(max))), Steps: walk(r, 12, max)}
		if i%5 != 0 {
			s.Behavior, s.Up, s.Down = true, randomRules(r, false), randomRules(r, true)
		}
		all = append(all, s)
	}
	for i := range all {
		all[i] = play(all[i])
	}
	return all
}

// WriteVectors writes all vectors as JSON, one a line; the same questions for every version.
func WriteVectors(w io.Writer, version string) {
	r := rand.New(rand.NewSource(20260101))
	metrics := append(edgeMetrics(), randomMetrics(r)...)
	fmt.Fprintf(w, "{\"version\": %q, \"metrics\": [\n", version)
	writeLines(w, metrics)
	fmt.Fprint(w, "], \"sequences\": [\n")
	writeLines(w, sequences(r))
	fmt.Fprint(w, "]}\n")
}

func writeLines[T any](w io.Writer, vectors []T) {
	for i, vector := range vectors {
		line, err := json.Marshal(vector)
		if err != nil {
			panic(err)
		}
		separator := ","
		if i == len(vectors)-1 {
			separator = ""
		}
		fmt.Fprintf(w, "%s%s\n", line, separator)
	}
}
