// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	webhookserver "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/test/clustermetrics"
	"github.com/gpudra/gpu-dra-driver/test/nodemetrics"
)

// series are the exported series: name → label → values; "" matches any value.
type series map[string]map[string][]string

// The dashboard and the alerts use only existing metrics, labels and label values.
func TestDashboard(t *testing.T) {
	known := scraped(t)
	asked := dashboard(t)
	if len(asked) < 20 {
		t.Fatalf("the dashboard has %d expressions", len(asked))
	}
	for _, a := range alerts(t) {
		asked = append(asked, ask{expr: a.Expr})
		if level, _, ok := strings.Cut(a.Record, ":"); ok { // the labels that are kept
			known[a.Record] = map[string][]string{}
			for _, label := range strings.Split(level, "_") {
				known[a.Record][label] = []string{""}
			}
		}
	}
	page := read(t, "../../docs/operate/monitor.md") + read(t, "../../docs/operate/teams.md")
	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)\n```").FindAllStringSubmatch(page, -1) {
		for _, line := range strings.Split(block[1], "\n") {
			asked = append(asked, ask{expr: line})
		}
	}
	for _, a := range asked {
		for _, problem := range known.check(a) {
			t.Errorf("%s: %s", a.expr, problem)
		}
	}
}

// The check finds unknown metrics and labels.
func TestDashboardCheck(t *testing.T) {
	known := scraped(t)
	for _, tc := range []struct{ name, expr, legend, want string }{
		{"all is there", `sum by (node, state) (gpu_dra_cluster_gpus{state="free", node=~"$node"}) > 0`, "{{node}}",
			""},
		{"two metrics", `sum by (node) (gpu_dra_cluster_gpus) / sum by (node) (gpu_dra_cluster_gpu)`, "",
			"no metric gpu_dra_cluster_gpu"},
		{"a metric that is none", `rate(gpu_dra_operation_total[5m])`, "", "no metric gpu_dra_operation_total"},
		{"the parts of a histogram", `sum by (le, operation) (rate(gpu_dra_operation_duration_seconds_bucket[5m]))`, "",
			""},
		{"a histogram is not scraped by its name", `rate(gpu_dra_operation_duration_seconds[5m])`, "",
			"no metric gpu_dra_operation_duration_seconds"},
		{"a label that it does not have", `sum by (namespace) (gpu_dra_cluster_gpus)`, "",
			"gpu_dra_cluster_gpus has no label namespace"},
		{"a label that it is not selected by", `gpu_dra_cluster_gpus{uuid="x"}`, "",
			"gpu_dra_cluster_gpus has no label uuid"},
		{"a value that the label never has", `gpu_dra_cluster_gpus{state=~"free|busy"}`, "",
			"gpu_dra_cluster_gpus has no state busy"},
		{"a webhook that the chart does not have", `controller_runtime_webhook_requests_total{webhook="/mutate"}`, "",
			"controller_runtime_webhook_requests_total has no webhook /mutate"},
		{"an earlier time", `sum by (xid) (gpu_dra_gpu_xids_total unless gpu_dra_gpu_xid offset 5m)`,
			"{{xid}}", "no metric gpu_dra_gpu_xid"},
		{"a label that was added up over", `sum by (node) (gpu_dra_cluster_gpus)`, "{{model}}",
			"the legend has the label model, which is added up over"},
		{"the node of a plugin is from its PodMonitor", `sum by (node) (gpu_dra_claims)`, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := strings.Join(known.check(ask{tc.expr, tc.legend}), "; "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// scraped returns the series of the plugin and of the controller.
func scraped(t *testing.T) series {
	t.Helper()
	server := webhookserver.NewServer(webhookserver.Options{})
	for _, found := range regexp.MustCompile(`- name: (([^. ]+)\.\S+)\n +clientConfig:`).FindAllStringSubmatch(read(t,
		"testdata/default.golden.yaml"), -1) {
		admissionmetrics.Metrics.ObserveWebhookFailOpen(t.Context(), found[1], "validating")
		for _, why := range []admissionmetrics.WebhookRejectionErrorType{admissionmetrics.WebhookRejectionNoError,
			admissionmetrics.WebhookRejectionCallingWebhookError} {
			admissionmetrics.Metrics.ObserveWebhookRejection(t.Context(), found[1], "validating", "CREATE", why, 0)
		}
		if path := "/" + found[2]; !slices.Contains(webhooks, path) {
			webhooks = append(webhooks, path)
			server.Register(path, http.NotFoundHandler())
			// a histogram has no series before its first value
			server.WebhookMux().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, nil))
		}
	}
	known := series{}
	known.gather(t, nodemetrics.Example(t), targetLabels(t, "kubelet-plugin"))
	known.gather(t, clustermetrics.Example(), targetLabels(t, "controller"))
	known.gather(t, ctrlmetrics.Registry, targetLabels(t, "controller"))
	known.gather(t, legacyregistry.DefaultGatherer, nil)        // of an API server
	known["kube_node_info"] = map[string][]string{"node": {""}} // of kube-state-metrics
	return known
}

// Prometheus' own engine runs the panels on what is scraped: test/alerts, which is a module of its own.
func TestScrapeForTheEngine(t *testing.T) {
	const file = "../../test/alerts/testdata/scrape.txt"
	known := scraped(t)
	var lines []string
	ours := regexp.MustCompile("^(gpu_dra|controller_runtime_webhook|apiserver_admission|kube)_") // not those of Go
	counter := regexp.MustCompile("_(total|bucket|sum|count)$")
	for name, labels := range known {
		if !ours.MatchString(name) {
			continue
		}
		steps := "1x41"
		if counter.MatchString(name) {
			steps = "0+1x41"
		}
		for _, one := range combinations(labels) {
			lines = append(lines, name+"{"+one+"} "+steps+"\n")
			if strings.Contains(one, `le="+Inf"`) { // without a second bucket, a histogram has no quantile
				lines = append(lines, name+"{"+strings.Replace(one, "+Inf", "1", 1)+"} "+steps+"\n")
			}
		}
	}
	slices.Sort(lines)
	text := strings.Join(lines, "")
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, file) != text {
		t.Errorf("%s is out of date: go test ./deployments/helm -update", file)
	}
}

// combinations returns as many sets of labels as the label with the most values has values: each value occurs.
func combinations(labels map[string][]string) []string {
	most := 1
	for _, values := range labels {
		most = max(most, len(values))
	}
	var all []string
	for i := range most {
		var one []string
		for _, label := range slices.Sorted(maps.Keys(labels)) {
			value := cmp.Or(labels[label][i%len(labels[label])], "x")
			if label == "le" {
				value = "+Inf"
			}
			one = append(one, fmt.Sprintf("%s=%q", label, value))
		}
		all = append(all, strings.Join(one, ","))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// webhooks are those that controller-runtime counts already: it does for all of the process.
var webhooks []string

func (s series) gather(t *testing.T, from prometheus.Gatherer, more []string) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		labels := map[string][]string{}
		for _, label := range more {
			labels[label] = []string{""}
		}
		names := []string{family.GetName()}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = append(labels[l.GetName()], l.GetValue())
			}
			if m.GetHistogram() != nil {
				labels["le"] = []string{""}
				names = []string{family.GetName() + "_bucket", family.GetName() + "_sum", family.GetName() + "_count"}
			}
		}
		for _, name := range names {
			s[name] = labels
		}
	}
}

// targetLabels returns the labels that the PodMonitor of the component adds.
func targetLabels(t *testing.T, component string) []string {
	t.Helper()
	for _, document := range strings.Split(read(t, "testdata/everything.golden.yaml"), "\n---\n") {
		var monitor struct {
			Kind string
			Spec struct {
				Selector            struct{ MatchLabels map[string]string }
				PodMetricsEndpoints []struct {
					HonorLabels bool
					Relabelings []struct{ TargetLabel string }
				}
			}
		}
		if err := yaml.Unmarshal([]byte(document), &monitor); err != nil {
			t.Fatal(err)
		}
		if monitor.Kind != "PodMonitor" ||
			monitor.Spec.Selector.MatchLabels["app.kubernetes.io/component"] != component {
			continue
		}
		endpoint := monitor.Spec.PodMetricsEndpoints[0]
		if !endpoint.HonorLabels {
			t.Errorf("the PodMonitor of %s renames the label namespace of its metrics", component)
		}
		var labels []string
		for _, r := range endpoint.Relabelings {
			labels = append(labels, r.TargetLabel)
		}
		return labels
	}
	t.Fatalf("no PodMonitor of %s", component)
	return nil
}

// ask is a PromQL expression and its legend.
type ask struct{ expr, legend string }

// dashboard returns the queries of the rendered dashboard: of its panels and variables.
func dashboard(t *testing.T) []ask {
	t.Helper()
	for _, document := range strings.Split(read(t, "testdata/default.golden.yaml"), "\n---\n") {
		var object corev1.ConfigMap
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		if object.Kind != "ConfigMap" || object.Labels["grafana_dashboard"] != "1" {
			continue
		}
		var board struct {
			Panels []struct {
				ID                       int
				Type, Title, Description string
				Targets                  []struct{ Expr, LegendFormat string }
			}
			Templating struct {
				List []struct{ Type, Definition string }
			}
		}
		if err := json.Unmarshal([]byte(object.Data["gpus.json"]), &board); err != nil {
			t.Fatal(err)
		}
		var asked []ask
		ids := map[int]bool{}
		for _, panel := range board.Panels {
			if ids[panel.ID] {
				t.Errorf("panel %q: another one has the id %d", panel.Title, panel.ID)
			}
			ids[panel.ID] = true
			if panel.Type != "row" && panel.Description == "" {
				t.Errorf("panel %q has no description", panel.Title)
			}
			for _, target := range panel.Targets {
				asked = append(asked, ask{target.Expr, target.LegendFormat})
			}
		}
		for _, v := range board.Templating.List {
			if parts := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(
				v.Definition); parts != nil {
				asked = append(asked, ask{expr: "sum by (" + parts[2] + ") (" + parts[1] + ")"})
			} else if v.Type == "query" {
				t.Errorf("a variable of the dashboard has a query that this test does not read: %s", v.Definition)
			}
		}
		return asked
	}
	t.Fatal("no dashboard")
	return nil
}

var (
	selector   = regexp.MustCompile(`([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	rangeOf    = regexp.MustCompile(`\[[^\]]*\]`)
	offset     = regexp.MustCompile(`\boffset\s+[\w$]+`)
	grouping   = regexp.MustCompile(`\b(by|without|on|ignoring)\s*\(([^)]*)\)\s*`)
	identifier = regexp.MustCompile(`[a-zA-Z_:][\w:]*\s*\(?`)
	legendOf   = regexp.MustCompile(`{{\s*(\w+)\s*}}`)
	operators  = []string{"and", "or", "unless", "bool", "group_left", "group_right"}
)

// check returns what the expression uses and does not exist. It parses only the PromQL that is used here: "sum by (…)
// (…)", and not "sum(…) by (…)".
func (s series) check(a ask) (problems []string) {
	missing := func(metrics []string, label string) {
		for _, m := range metrics {
			if labels, ok := s[m]; ok && labels[label] == nil {
				problems = append(problems, m+" has no label "+label)
			}
		}
	}
	for _, found := range selector.FindAllStringSubmatch(a.expr, -1) {
		for _, m := range matcher.FindAllStringSubmatch(found[2], -1) {
			label, values := m[1], s[found[1]][m[1]]
			missing(found[1:2], label)
			for _, value := range strings.Split(m[2], "|") {
				if len(values) == 0 || slices.Contains(values, "") || strings.Contains(value, "$") {
					continue
				}
				if !slices.ContainsFunc(values, regexp.MustCompile("^(?:"+value+")$").MatchString) {
					problems = append(problems, found[1]+" has no "+label+" "+value)
				}
			}
		}
	}
	bare := rangeOf.ReplaceAllString(selector.ReplaceAllString(a.expr, "$1"), "")
	bare = offset.ReplaceAllString(bare, "")
	for _, name := range metricsOf(bare) {
		if s[name] == nil {
			problems = append(problems, "no metric "+name)
		}
	}
	grouped := map[string]bool{}
	for _, at := range grouping.FindAllStringSubmatchIndex(bare, -1) {
		for _, label := range strings.FieldsFunc(bare[at[4]:at[5]], func(r rune) bool { return r == ',' || r == ' ' }) {
			if kind := bare[at[2]:at[3]]; kind == "by" {
				grouped[label] = true
				argument := argumentOf(bare[at[1]:])
				if argument == "" {
					problems = append(problems, "write by (…) in front of what is added up")
				}
				missing(metricsOf(argument), label)
			}
		}
	}
	for _, found := range legendOf.FindAllStringSubmatch(a.legend, -1) {
		if !grouped[found[1]] {
			problems = append(problems, "the legend has the label "+found[1]+", which is added up over")
		}
	}
	return problems
}

// metricsOf returns the names that are neither functions nor keywords.
func metricsOf(bare string) []string {
	var names []string
	for _, word := range identifier.FindAllString(grouping.ReplaceAllString(bare, ""), -1) {
		if word = strings.TrimSpace(word); !strings.HasSuffix(word, "(") && !slices.Contains(operators, word) {
			names = append(names, word)
		}
	}
	return names
}

// argumentOf returns the text between the first parenthesis and the matching one.
func argumentOf(text string) string {
	depth := 0
	for i, r := range text {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 {
			return text[:min(i+1, len(text))]
		}
	}
	return text
}
