// SPDX-License-Identifier: Apache-2.0

// Package alerts_test runs the alerts and the dashboard of the chart in Prometheus's own engine, on made-up series.
package alerts_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	_ "github.com/prometheus/prometheus/discovery/kubernetes" // for kubernetes_sd_configs
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

const (
	alerts    = "../../deployments/helm/gpu-dra-driver/alerts/*.yaml"
	dashboard = "../../deployments/helm/gpu-dra-driver/dashboards/gpus.json"
)

// gpu and other are labels of two GPUs.
const (
	gpu   = `node="n1",uuid="GPU-1",device="gpu-3b-00-0"`
	other = `node="n1",uuid="GPU-2",device="gpu-5e-00-0"`
)

// A series has a sample each 30 seconds: 1x10 is 11 times 1, 0+2x10 is 0, 2, 4, … 20, and _ is a missing sample. The
// alerts are evaluated each 30 seconds until at.
func TestAlerts(t *testing.T) {
	known := chartRules(t)
	fired, quiet := map[string]bool{}, map[string]bool{}
	for _, tc := range []struct {
		name, alert string
		series      []string
		at          time.Duration
		want        []string // the summaries of the firing alerts, by label
	}{
		{"an unhealthy GPU, and a healthy one beside it", "GPUUnhealthy", []string{
			`gpu_dra_gpu_state{` + gpu + `,state="unhealthy"} 1x20`,
			`gpu_dra_gpu_state{` + gpu + `,state="healthy"} 0x20`,
			`gpu_dra_gpu_state{` + other + `,state="unhealthy"} 0x20`,
			`gpu_dra_gpu_state{` + other + `,state="healthy"} 1x20`,
		}, 6 * time.Minute, []string{"GPU gpu-3b-00-0 of node n1 is unhealthy."}},
		{"two plugins during an update are one alert", "GPUUnhealthy", []string{
			`gpu_dra_gpu_state{` + gpu + `,state="unhealthy",pod="old"} 1x14`,
			`gpu_dra_gpu_state{` + gpu + `,state="unhealthy",pod="new"} _x4 1x20`,
		}, 8 * time.Minute, []string{"GPU gpu-3b-00-0 of node n1 is unhealthy."}},
		{"unhealthy for a short time", "GPUUnhealthy", []string{
			`gpu_dra_gpu_state{` + gpu + `,state="unhealthy"} 1x20`,
		}, 4*time.Minute + 30*time.Second, nil},
		{"a lost GPU is not also unhealthy", "GPUUnhealthy", []string{
			`gpu_dra_gpu_state{` + gpu + `,state="unhealthy"} 0x20`,
			`gpu_dra_gpu_state{` + gpu + `,state="lost"} 1x20`,
		}, 10 * time.Minute, nil},

		{"a lost GPU", "GPULost", []string{
			`gpu_dra_gpu_state{` + gpu + `,state="lost"} 0 1x20`,
		}, 3 * time.Minute, []string{"GPU gpu-3b-00-0 of node n1 is lost."}},
		{"lost for a short time", "GPULost", []string{
			`gpu_dra_gpu_state{` + gpu + `,state="lost"} 0 1x20`,
		}, 2 * time.Minute, nil},
		{"a GPU that answers again", "GPULost", []string{
			`gpu_dra_gpu_state{` + gpu + `,state="lost"} 0 1x2 0x20`,
		}, 5 * time.Minute, nil},

		{"a GPU whose events are not watched", "GPUUnmonitored", []string{
			`gpu_dra_gpu_state{` + gpu + `,state="unmonitored"} 1x130`,
		}, 61 * time.Minute, []string{"The events of GPU gpu-3b-00-0 of node n1 are not watched."}},
		{"not watched while the driver is replaced", "GPUUnmonitored", []string{
			`gpu_dra_gpu_state{` + gpu + `,state="unmonitored"} 1x130`,
		}, 59 * time.Minute, nil},

		{"two XIDs per second, of two numbers", "GPUXIDStorm", []string{
			`gpu_dra_gpu_xids_total{node="n1",uuid="GPU-1",xid="13"} 0+30x40`,
			`gpu_dra_gpu_xids_total{node="n1",uuid="GPU-1",xid="31"} 0+30x40`,
			`gpu_dra_gpu_xids_total{node="n1",uuid="GPU-2",xid="31"} 0+1x40`,
		}, 15 * time.Minute, []string{"A GPU of node n1 reports 2 XIDs per second."}},
		{"a thousand XIDs at once", "GPUXIDStorm", []string{
			`gpu_dra_gpu_xids_total{node="n1",uuid="GPU-1",xid="13"} 0x5 1000x40`,
		}, 15 * time.Minute, nil},
		{"one XID in two seconds", "GPUXIDStorm", []string{
			`gpu_dra_gpu_xids_total{node="n1",uuid="GPU-1",xid="13"} 0+15x40`,
		}, 15 * time.Minute, nil},

		{"eight changes in an hour", "GPUFlapping", []string{
			`gpu_dra_gpu_state{` + gpu + `,state="healthy"} 1x9 0x9 1x9 0x9 1x9 0x9 1x9 0x9 1x9`,
			`gpu_dra_gpu_state{` + other + `,state="healthy"} 1x89`,
		}, 45 * time.Minute, []string{
			"GPU gpu-3b-00-0 of node n1 has changed 8 times in an hour between healthy and another state."}},
		{"three failures in an hour, and three recoveries", "GPUFlapping", []string{
			`gpu_dra_gpu_state{` + gpu + `,state="healthy"} 1x9 0x9 1x9 0x9 1x9 0x9 1x9`,
		}, 35 * time.Minute, nil},

		{"claims that cannot be prepared", "ClaimsFail", []string{
			`gpu_dra_operations_total{node="n1",operation="prepare",result="error"} 0+1x40`,
			`gpu_dra_operations_total{node="n1",operation="unprepare",result="error"} 0x40`,
		}, 10 * time.Minute, []string{"Node n1 cannot prepare some claims."}},
		{"claims that are prepared", "ClaimsFail", []string{
			`gpu_dra_operations_total{node="n1",operation="prepare",result="success"} 0+1x40`,
			`gpu_dra_operations_total{node="n1",operation="prepare",result="error"} 0x40`,
		}, 10 * time.Minute, nil},

		{"a claim that cannot be released", "ClaimsNotReleased", []string{
			`gpu_dra_claims{node="n1",phase="Releasing"} 1x40`,
		}, 16 * time.Minute, []string{"1 claims of node n1 cannot be released."}},
		{"a claim that is released", "ClaimsNotReleased", []string{
			`gpu_dra_claims{node="n1",phase="Releasing"} 1x20 0x20`,
		}, 16 * time.Minute, nil},

		{"a mode that waits for two claims", "ModeChangePending", []string{
			`gpu_dra_mode_change_pending_claims{node="n1",uuid="GPU-1",to="exclusive",claim="a"} 1x800`,
			`gpu_dra_mode_change_pending_claims{node="n1",uuid="GPU-1",to="exclusive",claim="b"} 1x800`,
		}, 361 * time.Minute, []string{"A GPU of node n1 waits for claims before it gets its configured mode."}},
		{"a mode that has changed", "ModeChangePending", []string{
			`gpu_dra_mode_change_pending_claims{node="n1",uuid="GPU-1",to="exclusive",claim="a"} 1x600 _x200`,
		}, 361 * time.Minute, nil},

		{"a claim that has been idle for more than a day", "GPUIdle", []string{
			`gpu_dra_claim_idle_seconds{node="n1",namespace="ml",claim="a",device="gpu-3b-00-0",pod="old"} 90000x4`,
			`gpu_dra_claim_idle_seconds{node="n1",namespace="ml",claim="a",device="gpu-3b-00-0",pod="new"} 90000x4`,
			`gpu_dra_claim_idle_seconds{node="n1",namespace="ml",claim="b",device="gpu-3b-00-0"} 80000x4`,
		}, time.Minute, []string{"The claim a of namespace ml has not used its GPU for 1d 1h 0m 0s."}},
		{"a claim that has been idle for less than a day", "GPUIdle", []string{
			`gpu_dra_claim_idle_seconds{node="n1",namespace="ml",claim="a",device="gpu-3b-00-0"} 80000x4`,
		}, time.Minute, nil},

		{"tainted GPUs", "GPUsTainted", []string{
			`gpu_dra_cluster_tainted_gpus{node="n1",model="T4"} 2x40`,
			`gpu_dra_cluster_tainted_gpus{node="n2",model="T4"} 0x40`,
		}, 11 * time.Minute, []string{"2 GPUs T4 of node n1 have a taint."}},
		{"no tainted GPUs", "GPUsTainted", []string{
			`gpu_dra_cluster_tainted_gpus{node="n1",model="T4"} 2x10 0x40`,
		}, 11 * time.Minute, nil},

		{"a node that came back without one of its GPUs", "GPUsMissing", []string{
			`gpu_dra_cluster_gpus{node="n1",model="T4",state="free"} 4x20 3x40`,
			`gpu_dra_cluster_gpus{node="n1",model="T4",state="allocated"} 4x60`,
			`gpu_dra_cluster_gpus{node="n2",model="T4",state="free"} 8x60`,
		}, 30 * time.Minute, []string{"Node n1 has 1 GPUs less than within the last day."}},
		{"GPUs that claims get and give back, while two controllers export them", "GPUsMissing", []string{
			`gpu_dra_cluster_gpus{node="n1",model="T4",state="free",pod="a"} 8x10 0x10 _x40`,
			`gpu_dra_cluster_gpus{node="n1",model="T4",state="allocated",pod="a"} 0x10 8x10 _x40`,
			`gpu_dra_cluster_gpus{node="n1",model="T4",state="free",pod="b"} _x15 0x45`,
			`gpu_dra_cluster_gpus{node="n1",model="T4",state="allocated",pod="b"} _x15 8x45`,
		}, 30 * time.Minute, nil},

		{"claims wait, and all GPUs are allocated", "NoFreeGPUs", []string{
			`gpu_dra_cluster_claims{namespace="ml",state="waiting"} 3x40`,
			`gpu_dra_cluster_gpus{node="n1",state="free"} 0x40`,
		}, 16 * time.Minute, []string{"No whole GPU is free, and 3 claims wait."}},
		{"claims wait, and a GPU is free", "NoFreeGPUs", []string{
			`gpu_dra_cluster_claims{namespace="ml",state="waiting"} 3x40`,
			`gpu_dra_cluster_gpus{node="n1",state="free"} 1x40`,
		}, 16 * time.Minute, nil},

		{"claims wait beside a free GPU", "ClaimsWaitBesideFreeGPUs", []string{
			`gpu_dra_cluster_claims{namespace="ml",state="waiting"} 3x140`,
			`gpu_dra_cluster_claims{namespace="web",state="waiting"} 0x140`,
			`gpu_dra_cluster_gpus{node="n1",state="free"} 1x140`,
		}, 61 * time.Minute, []string{"3 claims of namespace ml wait while GPUs are free."}},
		{"claims wait without a free GPU", "ClaimsWaitBesideFreeGPUs", []string{
			`gpu_dra_cluster_claims{namespace="ml",state="waiting"} 3x140`,
			`gpu_dra_cluster_gpus{node="n1",state="free"} 0x140`,
		}, 61 * time.Minute, nil},

		{"a node whose plugin is gone, one with it, and one that is gone", "PluginAbsent", []string{
			`gpu_dra_devices{node="n1",state="published"} 2x10`,
			`gpu_dra_devices{node="n2",state="published"} 2x60`,
			`gpu_dra_devices{node="n3",state="published"} 2x10`,
			`kube_node_info{node="n1"} 1x60`, `kube_node_info{node="n2"} 1x60`, `kube_node_info{node="n3"} 1x10`,
		}, 26 * time.Minute, []string{"Node n1 had GPUs within a day, and there are no metrics of its plugin now."}},
		{"a plugin that starts again", "PluginAbsent", []string{
			`gpu_dra_devices{node="n1",state="published"} 2x10 _x30 2x20`, `kube_node_info{node="n1"} 1x60`,
		}, 26 * time.Minute, nil},

		{"a webhook without an answer, and one that refuses", "WebhookFails", []string{
			`apiserver_admission_webhook_fail_open_count{name="check.gpu.nvidia.com",type="validating"} 0+1x60`,
			`apiserver_admission_webhook_rejection_count{name="quota.gpu.nvidia.com",error_type="no_error"} 0+1x60`,
			`apiserver_admission_webhook_fail_open_count{name="other.example.com",type="validating"} 0+1x60`,
		}, 15 * time.Minute, []string{"API servers get no answer of the webhook check.gpu.nvidia.com."}},
		{"a webhook without which objects are refused", "WebhookFails", []string{
			`apiserver_admission_webhook_rejection_count{name="validate.gpu.nvidia.com",error_type="calling_webhook_error"} 0+1x60`,
		}, 15 * time.Minute, []string{"API servers get no answer of the webhook validate.gpu.nvidia.com."}},
		{"a minute without an answer", "WebhookFails", []string{
			`apiserver_admission_webhook_fail_open_count{name="check.gpu.nvidia.com",type="validating"} 0x4 1 5 9x60`,
		}, 15 * time.Minute, nil},

		{"a quota that is used up, and one that is not", "GPUQuotaFull", []string{
			`gpu_dra_cluster_quota{namespace="ml",quota="team",resource="gpus",type="used"} 9x140`,
			`gpu_dra_cluster_quota{namespace="ml",quota="team",resource="gpus",type="hard"} 10x140`,
			`gpu_dra_cluster_quota{namespace="ml",quota="team",resource="memory",type="used"} 4x140`,
			`gpu_dra_cluster_quota{namespace="ml",quota="team",resource="memory",type="hard"} 8x140`,
		}, 61 * time.Minute, []string{"90% of gpus of the GPUQuota team of namespace ml is used."}},
		{"a quota that allows nothing", "GPUQuotaFull", []string{
			`gpu_dra_cluster_quota{namespace="ml",quota="team",resource="gpus",type="used"} 0x140`,
			`gpu_dra_cluster_quota{namespace="ml",quota="team",resource="gpus",type="hard"} 0x140`,
		}, 61 * time.Minute, nil},

		{"no metrics of the cluster", "ClusterGPUMetricsAbsent", []string{`up 1x40`}, 11 * time.Minute,
			[]string{"The metrics of the cluster's GPUs are missing."}},
		{"metrics of the cluster", "ClusterGPUMetricsAbsent", []string{`gpu_dra_cluster_gpus{node="n1"} 0x40`},
			11 * time.Minute, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rule, ok := known[tc.alert]
			if !ok {
				t.Fatalf("the chart has no alert %s", tc.alert)
			}
			var got []string
			for _, a := range firing(t, rule, tc.series, tc.at) {
				got = append(got, a.Annotations.Get("summary"))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if tc.want == nil {
				quiet[tc.alert] = true
			} else {
				fired[tc.alert] = true
			}
		})
	}
	for name, rule := range known {
		if rule.Alert != "" && (!fired[name] || !quiet[name]) {
			t.Errorf("%s: no test of when it fires, or of when it does not", name)
		}
	}
}

// The description of GPUUnhealthy names what is wrong with this GPU.
func TestCauses(t *testing.T) {
	all := firing(t, chartRules(t)["GPUUnhealthy"], []string{
		`gpu_dra_gpu_state{` + gpu + `,state="unhealthy"} 1x20`,
		`gpu_dra_gpu_condition{` + gpu + `,cause="NVLinkDown",pod="old"} 1x20`,
		`gpu_dra_gpu_condition{` + gpu + `,cause="NVLinkDown",pod="new"} 1x20`,
		`gpu_dra_gpu_condition{` + gpu + `,cause="XID74"} 1x20`,
		`gpu_dra_gpu_condition{` + other + `,cause="XID13"} 1x20`,
	}, 6*time.Minute)
	if len(all) != 1 {
		t.Fatalf("got %d alerts, want 1", len(all))
	}
	const want = "New claims avoid the GPU GPU-1. What is wrong: NVLinkDown, XID74. The events of the node say"
	if got := all[0].Annotations.Get("description"); !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q in front", got, want)
	}
}

// Every expression of the dashboard has a result on what is scraped of the plugins and the controller.
func TestDashboard(t *testing.T) {
	scrape, err := os.ReadFile("testdata/scrape.txt")
	if err != nil {
		t.Fatal(err)
	}
	query := queryFunc(t, strings.Split(strings.TrimSpace(string(scrape)), "\n"))
	all := panels(t)
	if len(all) < 20 {
		t.Fatalf("the dashboard has %d panels with expressions", len(all))
	}
	for title, exprs := range all {
		for _, expr := range exprs {
			vector, err := query(t.Context(), expr, time.Unix(0, 0).Add(20*time.Minute))
			if err != nil || len(vector) == 0 || math.IsNaN(vector[0].F) {
				t.Errorf("%s: %s: got %v, %v, want a result", title, expr, vector, err)
			}
		}
	}
}

// The panel of XIDs shows also the first XID of its number, which increase() alone does not.
func TestXIDs(t *testing.T) {
	query := queryFunc(t, []string{
		`gpu_dra_gpu_xids_total{node="n1",uuid="GPU-1",xid="79"} _x40 1x40`,
		`gpu_dra_gpu_xids_total{node="n1",uuid="GPU-1",xid="13"} 7x35 9x45`,
		`gpu_dra_gpu_xids_total{node="n1",uuid="GPU-2",xid="13"} 7x80`,
	})
	for _, tc := range []struct {
		at   time.Duration
		want string
	}{
		{15 * time.Minute, ""},
		{22 * time.Minute, `{node="n1", uuid="GPU-1", xid="79"} 1; {node="n1", uuid="GPU-1", xid="13"} 2`},
		{35 * time.Minute, ""},
	} {
		vector, err := query(t.Context(), panels(t)["XIDs by GPU"][0], time.Unix(0, 0).Add(tc.at))
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(vector, func(a, b promql.Sample) int { return cmp.Compare(a.F, b.F) })
		var got []string
		for _, s := range vector {
			got = append(got, fmt.Sprintf("%s %.0f", s.Metric, s.F))
		}
		if got := strings.Join(got, "; "); got != tc.want {
			t.Errorf("after %s: got %s, want %s", tc.at, got, tc.want)
		}
	}
}

// panels returns the expressions of the dashboard by the title of their panel, with the variables as Grafana sets them.
func panels(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(dashboard)
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$__range", "6h", "$node", ".*", "$model", ".*",
		"$namespace", ".*")
	all := map[string][]string{}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			all[p.Title] = append(all[p.Title], variables.Replace(target.Expr))
		}
	}
	return all
}

// The rules of the bill.
const (
	hours  = "namespace_model_device_state_reason:gpu_dra_cluster_gpu_hours:increase1h"
	owners = "namespace_owner_model_device_state:gpu_dra_cluster_gpu_hours:increase1h"
	cost   = "namespace_model_device_state_reason:gpu_dra_cluster_gpu_cost:increase1h"
)

// The rules count what was counted in an hour: also by two leaders, of a namespace that is new, and while Prometheus
// did not run. The queries of the page sum that.
func TestGPUHours(t *testing.T) {
	const used = `gpu_dra_cluster_gpu_seconds_total{namespace="ml",model="T4",device="gpu",state="used",pod=`
	const other = `gpu_dra_cluster_gpu_seconds_total{namespace="old",model="T4",device="gpu",state="free",pod="a"}`
	const owner = `gpu_dra_cluster_owner_gpu_seconds_total{namespace="ml",owner="Pod/a",model="T4",device="gpu",` +
		`state="used",pod=`
	all := func(series []string, expr string, at time.Duration) string {
		t.Helper()
		vector, err := queryFunc(t, series)(t.Context(), expr, time.Unix(0, 0).Add(at))
		if err != nil {
			t.Fatalf("%s: %v", expr, err)
		}
		var lines []string
		for _, s := range vector {
			lines = append(lines, fmt.Sprintf("%s %.1f", s.Metric, s.F))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	const sum = `{device="gpu", model="T4", namespace="ml", state="used"} `
	for _, tc := range []struct {
		name   string
		series []string
		rule   string
		at     time.Duration
		want   string
	}{
		{"a GPU all the time", []string{used + `"a"} 7200+30x480`}, hours, 3 * time.Hour, sum + "1.0"},
		{"a namespace that is new", []string{used + `"a"} _x300 0+30x180`}, hours, 3 * time.Hour, sum + "0.5"},
		{"its first counter is not 0", []string{used + `"a"} _x300 1800x180`, other + ` 0x480`}, hours, 3 * time.Hour,
			sum + "0.5\n" + `{device="gpu", model="T4", namespace="old", state="free"} 0.0`},
		{"nothing was scraped for more than a day", []string{used + `"a"} 0+30x10 _x3200 500000+30x180`}, hours,
			time.Duration(10+3200+60) * 30 * time.Second, sum + "0.5"},
		{"the next leader goes on", []string{used + `"a"} 7200+30x300`, used + `"b"} _x305 16350+30x175`}, hours,
			3 * time.Hour, sum + "1.0"},
		{"Prometheus did not run at the hour before", []string{used + `"a"} 0+30x220 _x40 7830+30x220`}, hours,
			3 * time.Hour, sum + "1.2"},
		{"a namespace that holds nothing any more", []string{used + `"a"} 7200x480`}, hours, 3 * time.Hour, sum + "0.0"},
		{"a pod", []string{owner + `"a"} _x300 0+15x180`}, owners, 3 * time.Hour,
			`{device="gpu", model="T4", namespace="ml", owner="Pod/a", state="used"} 0.2`},
		{"its cost", []string{hours + `{namespace="ml",model="T4",device="gpu",state="used"} 4x9`,
			hours + `{namespace="ml",model="other",device="gpu",state="used"} 4x9`,
			`gpu_dra_cluster_gpu_price{model="T4",currency="EUR",pod="a"} 0.5x9`}, cost, time.Minute,
			`{device="gpu", model="T4", namespace="ml", state="used"} 2.0`},
	} {
		if got := all(tc.series, chartRules(t)[tc.rule].Expr, tc.at); got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
	page, err := os.ReadFile("../../docs/operate/teams.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "### Prices")
	_, text, _ = strings.Cut(text, "```promql\n")
	text, _, _ = strings.Cut(text, "\n```")
	queries := strings.Split(text, "\n")
	recorded := []string{hours + `{namespace="ml",model="T4",state="used"} 2x9`,
		hours + `{namespace="ml",model="T4",state="idle"} 1x9`, hours + `{state="sick",reason="gpu-lost",model="T4"} 1x9`,
		cost + `{namespace="ml",model="T4",state="used"} 4x9`,
		cost + `{namespace="ml",model="T4",state="idle"} 2x9`,
		cost + `{model="T4",state="sick"} 2x9`}
	want := []string{`{namespace="ml"} 60.0`, `{namespace="ml"} 20.0`,
		`{reason="gpu-lost", state="sick"} 10.0` + "\n" + `{state="idle"} 10.0` + "\n" + `{state="used"} 20.0`,
		`{state="idle"} 0.2` + "\n" + `{state="sick"} 0.2` + "\n" + `{state="used"} 0.5`}
	if len(queries) != len(want) {
		t.Fatalf("the page has the queries %q, want %d", queries, len(want))
	}
	for i, query := range queries {
		if got := all(recorded, query, time.Hour); got != want[i] {
			t.Errorf("%s: got %s, want %s", query, got, want[i])
		}
	}
}

// chartRules returns the rules of the chart, by name.
func chartRules(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	files, err := filepath.Glob(alerts)
	if err != nil || len(files) == 0 {
		t.Fatalf("files of alerts: %v, %v", files, err)
	}
	known := map[string]rulefmt.Rule{}
	for _, file := range files {
		groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}),
			slog.New(slog.DiscardHandler))
		for _, err := range errs {
			t.Error(err)
		}
		if groups == nil {
			continue
		}
		for _, g := range groups.Groups {
			for _, r := range g.Rules {
				known[cmp.Or(r.Alert, r.Record)] = r
			}
		}
	}
	return known
}

// firing evaluates the rule each 30 seconds until at, and returns the alerts that fire then, by label.
func firing(t *testing.T, r rulefmt.Rule, series []string, at time.Duration) []*rules.Alert {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
	if err != nil {
		t.Fatal(err)
	}
	query := queryFunc(t, series)
	rule := rules.NewAlertingRule(r.Alert, expr, time.Duration(r.For), 0, labels.FromMap(r.Labels),
		labels.FromMap(r.Annotations), labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler))
	for since := time.Duration(0); since <= at; since += 30 * time.Second {
		if _, err := rule.Eval(t.Context(), 0, time.Unix(0, 0).Add(since), query, &url.URL{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	var all []*rules.Alert
	for _, a := range rule.ActiveAlerts() {
		a.Annotations.Range(func(l labels.Label) {
			if strings.Contains(l.Value, "<error") || strings.Contains(l.Value, "<no value>") {
				t.Errorf("%s: %s", l.Name, l.Value)
			}
		})
		if a.State == rules.StateFiring {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *rules.Alert) int { return labels.Compare(a.Labels, b.Labels) })
	return all
}

// queryFunc returns a function that queries the series.
func queryFunc(t *testing.T, series []string) rules.QueryFunc {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 30s\n  "+strings.Join(series, "\n  "))
	t.Cleanup(func() { _ = storage.Close() })
	return rules.EngineQueryFunc(promqltest.NewTestEngineWithOpts(t, promql.EngineOpts{
		MaxSamples: 100_000, Timeout: time.Minute}), storage)
}

// The scrape configuration of the page, for those without the operator, as Prometheus reads it: what is scraped, and
// the label that the alerts need.
func TestScrapeConfiguration(t *testing.T) {
	page, err := os.ReadFile("../../docs/operate/monitor.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\nscrape_configs:\n")
	text, _, ok := strings.Cut("scrape_configs:\n"+text, "```")
	if !ok {
		t.Fatal("docs/operate/monitor.md has no scrape_configs")
	}
	c, err := config.Load(text, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	scraped, err := c.GetScrapeConfigs()
	if err != nil || len(scraped) != 1 || !scraped[0].HonorLabels {
		t.Fatalf("got %v, %v, want one that honors labels", scraped, err)
	}
	for _, row := range []struct{ name, port, want string }{
		{"the plugin", "http", "n1"},
		{"the controller, whose metrics name the node that they are of", "metrics", ""},
		{"another port", "webhook", "not scraped"},
	} {
		target := labels.NewBuilder(labels.FromStrings("__meta_kubernetes_pod_container_port_name", row.port,
			"__meta_kubernetes_pod_node_name", "n1"))
		got := "not scraped"
		if relabel.ProcessBuilder(target, scraped[0].RelabelConfigs...) {
			got = target.Get("node")
		}
		if got != row.want {
			t.Errorf("%s: got the node %q, want %q", row.name, got, row.want)
		}
	}
}
