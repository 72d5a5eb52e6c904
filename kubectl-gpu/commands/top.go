// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

// Use is what a container has and uses of a GPU.
type Use struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Node      string `json:"node"`
	GPU       string `json:"gpu"` // name of the device
	UUID      string `json:"uuid"`
	// What the container has by its claims; nil: nothing.
	MemoryRequested *int64 `json:"memoryRequested,omitempty"` // bytes
	CoresRequested  *int64 `json:"coresRequested,omitempty"`  // percent
	// What its processes use; nil: the GPU does not tell.
	MemoryUsed  *int64 `json:"memoryUsed,omitempty"`  // bytes
	Utilization *int64 `json:"utilization,omitempty"` // percent of the last seconds
}

// The plugins' metrics of containers: see docs/reference/events-and-metrics.md.
const (
	memoryRequestedMetric = "gpu_dra_container_memory_requested_bytes"
	coresRequestedMetric  = "gpu_dra_container_cores_requested_ratio"
	memoryUsedMetric      = "gpu_dra_container_memory_used_bytes"
	utilizationMetric     = "gpu_dra_container_utilization_ratio"
)

const (
	// metricsPort is the name of the plugins' port with metrics.
	metricsPort = "http"
	// metricsTimeout is the timeout of one plugin.
	metricsTimeout = 10 * time.Second
	// metricsRequests is how many plugins are asked at the same time.
	metricsRequests = 32
)

type topOptions struct {
	output
	plugins       string   // label selector
	names         []string // of nodes and GPUs
	sortBy        string   // one of topOrders
	allNamespaces bool
	idle          bool // what is held and not used
}

// topOrders are the values of --sort-by, with what is compared; the greatest is first.
var topOrders = map[string]func(*Use) *int64{
	"memory":      func(u *Use) *int64 { return u.MemoryUsed },
	"utilization": func(u *Use) *int64 { return u.Utilization },
}

// addPlugins adds the flag for the label selector of the driver's plugin pods.
func addPlugins(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "plugins", "app.kubernetes.io/component=kubelet-plugin",
		"Label selector of the driver's plugin pods.")
}

func topCommand(p *plugin) *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top [NODE|GPU...]",
		Short: "Show what containers use of GPUs.",
		Long: "Show what the containers of a namespace use of GPUs, from the metrics of the driver's plugins. It " +
			"reads them through the API server and needs the right to get pods/proxy in the namespace of the driver. " +
			"With --idle, show the claims whose pods have not used their GPU for a while, longest first, as the " +
			"driver has marked them: for that the right to list claims and slices is enough.",
		Example: "  kubectl gpu top -n team-a\n  kubectl gpu top -A node-1 --sort-by memory\n" +
			"  kubectl gpu top -A --idle",
		PreRunE: func(*cobra.Command, []string) error {
			switch {
			case o.sortBy != "" && topOrders[o.sortBy] == nil:
				return fmt.Errorf("--sort-by %q: want %s", o.sortBy, joined(slices.Sorted(maps.Keys(topOrders))))
			case o.sortBy != "" && o.idle:
				return errors.New("--sort-by: with --idle, the claim that is idle for longest is first; leave one out")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.names = args; o.idle {
				return p.topIdle(cmd.Context(), o)
			}
			return p.top(cmd.Context(), o)
		},
		ValidArgsFunction: p.complete(p.namesOf((*GPU).place)),
	}
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Show the containers of all namespaces.")
	cmd.Flags().BoolVar(&o.idle, "idle", false, "Show the claims that hold a GPU and do not use it.")
	cmd.Flags().StringVar(&o.sortBy, "sort-by", "", "The most first: memory or utilization. Default: by name.")
	completeFlag(cmd, "sort-by", fixed(slices.Sorted(maps.Keys(topOrders))))
	addPlugins(cmd, &o.plugins)
	o.addFlags(p, cmd)
	return cmd
}

func (p *plugin) top(ctx context.Context, o topOptions) error {
	plugins, err := pluginPods(ctx, p.client, o.plugins)
	if err != nil {
		return err
	}
	all, failed := uses(ctx, p.client, ofNodes(plugins, o.names))
	all = slices.DeleteFunc(all, func(u *Use) bool {
		return !o.allNamespaces && u.Namespace != p.namespace ||
			len(o.names) > 0 && !slices.ContainsFunc(o.names, u.named)
	})
	if of := topOrders[o.sortBy]; of != nil {
		slices.SortStableFunc(all, func(a, b *Use) int {
			return cmp.Compare(ptr.Deref(of(b), -1), ptr.Deref(of(a), -1))
		})
	}
	nothing := "No containers with GPUs found."
	if !o.allNamespaces {
		nothing = fmt.Sprintf("No containers with GPUs found in the namespace %s.", p.namespace)
	}
	err = printList(p, o.output, "UseList", all, nil, nothing, useTable(all, o))
	return errors.Join(err, failed)
}

// ofNodes returns the plugins of the nodes that the names begin with; all, if one begins with something else.
func ofNodes(plugins []corev1.Pod, names []string) []corev1.Pod {
	var nodes []string
	for _, name := range names {
		node, _, _ := strings.Cut(name, "/")
		nodes = append(nodes, node)
		if len(onNodes(plugins, []string{node})) == 0 {
			return plugins
		}
	}
	if len(names) == 0 {
		return plugins
	}
	return onNodes(plugins, nodes)
}

// onNodes returns the pods of the nodes.
func onNodes(pods []corev1.Pod, nodes []string) []corev1.Pod {
	of := sets.New(nodes...)
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return !of.Has(p.Spec.NodeName) })
}

// named reports whether the name is that of the GPU, or of its node.
func (u *Use) named(name string) bool {
	return name == u.Node || name == u.GPU || name == u.UUID || name == u.Node+"/"+u.GPU
}

// pluginPods returns the pods of the driver's plugins.
func pluginPods(ctx context.Context, client kubernetes.Interface, selector string) ([]corev1.Pod, error) {
	found, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: selector,
		ResourceVersion: "0"}) // what the API server has in memory is new enough
	if err != nil {
		return nil, (&cluster.Snapshot{Unread: map[string]error{cluster.Pods: err}}).Err()
	}
	if len(found.Items) == 0 {
		return nil, fmt.Errorf("no pod has the labels of the driver's plugin (%s): name others with --plugins",
			selector)
	}
	return found.Items, nil
}

// uses asks the plugins. The error names the nodes whose plugin did not answer.
func uses(ctx context.Context, client kubernetes.Interface, plugins []corev1.Pod) ([]*Use, error) {
	of, failed := make([][]*Use, len(plugins)), make([]error, len(plugins))
	var group errgroup.Group
	group.SetLimit(metricsRequests)
	for i := range plugins {
		group.Go(func() error {
			if of[i], failed[i] = usesOf(ctx, client, &plugins[i]); failed[i] != nil {
				text := why.Printable(failed[i].Error()) // the pod may have written it
				failed[i] = fmt.Errorf("node %s: metrics of the plugin %s/%s: %s", plugins[i].Spec.NodeName,
					plugins[i].Namespace, plugins[i].Name, text)
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in failed
	all := slices.Concat(of...)
	order := func(a, b *Use) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(a.Container, b.Container), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Node, b.Node))
	}
	slices.SortStableFunc(all, order)
	// During an update, two plugins of a node answer.
	all = slices.CompactFunc(all, func(a, b *Use) bool { return order(a, b) == 0 })
	return all, errors.Join(failed...)
}

// usesOf asks one plugin through the API server.
func usesOf(ctx context.Context, client kubernetes.Interface, plugin *corev1.Pod) ([]*Use, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	port, ok := portOf(plugin)
	if !ok {
		return nil, fmt.Errorf("no container has a port with the name %s", metricsPort)
	}
	answer := client.CoreV1().RESTClient().Get().Namespace(plugin.Namespace).Resource("pods").
		Name(utilnet.JoinSchemeNamePort("http", plugin.Name, port)).SubResource("proxy").Suffix("metrics").
		SetHeader("Accept", "text/plain, application/json;q=0.5").Do(ctx)
	text, _ := answer.Raw()
	err := answer.Error() // unlike that of Raw, it has the cause, such as that the plugin could not be reached
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("%w; the missing right is the verb \"get\" on pods/proxy in the namespace %s", err,
			plugin.Namespace)
	}
	if err != nil {
		return nil, err
	}
	return parse(text, plugin.Spec.NodeName)
}

// portOf returns the port of the plugin's metrics. The API server's proxy knows no names of ports.
func portOf(plugin *corev1.Pod) (string, bool) {
	for _, c := range plugin.Spec.Containers {
		for _, port := range c.Ports {
			if port.Name == metricsPort {
				return strconv.Itoa(int(port.ContainerPort)), true
			}
		}
	}
	return "", false
}

// parse reads the metrics of containers, in the text format of Prometheus.
func parse(text []byte, node string) ([]*Use, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read its metrics: %w", err)
	}
	found := map[Use]*Use{} // by labels
	for name, set := range map[string]func(u *Use, value float64){
		memoryRequestedMetric: func(u *Use, v float64) { u.MemoryRequested = new(int64(v)) },
		coresRequestedMetric:  func(u *Use, v float64) { u.CoresRequested = new(percent(v)) },
		memoryUsedMetric:      func(u *Use, v float64) { u.MemoryUsed = new(int64(v)) },
		utilizationMetric:     func(u *Use, v float64) { u.Utilization = new(percent(v)) },
	} {
		for _, metric := range families[name].GetMetric() {
			key := labelled(metric, node)
			if found[key] == nil {
				found[key] = new(key)
			}
			set(found[key], metric.GetGauge().GetValue())
		}
	}
	return slices.Collect(maps.Values(found)), nil
}

// labelled returns the container and the GPU that the labels name.
func labelled(metric *dto.Metric, node string) Use {
	u := Use{Node: node}
	fields := map[string]*string{"namespace": &u.Namespace, "pod": &u.Pod, "container": &u.Container, "uuid": &u.UUID,
		"device": &u.GPU}
	for _, label := range metric.GetLabel() {
		if field := fields[label.GetName()]; field != nil {
			*field = label.GetValue()
		}
	}
	return u
}

// percent returns a ratio in percent, rounded.
func percent(ratio float64) int64 { return int64(100*ratio + 0.5) }

func useTable(all []*Use, o topOptions) table {
	t := table{header: []string{"NAMESPACE", "POD", "CONTAINER", "NODE", "GPU", "MEMORY", "CORES", "UTILIZATION"}}
	for _, u := range all {
		memory, cores := known(u.MemoryUsed, size), none
		if u.MemoryRequested != nil {
			memory = memoryCell(Amount{Total: *u.MemoryRequested, Used: u.MemoryUsed})
		}
		if u.CoresRequested != nil {
			cores = limit(*u.CoresRequested)
		}
		t.add(u.Namespace, u.Pod, u.Container, u.Node, u.GPU, memory, cores, known(u.Utilization, inPercent))
	}
	if !o.allNamespaces {
		t.drop("NAMESPACE")
	}
	return t
}

// IdleHolder is a claim that holds a GPU, a share or a partition of it, and does not use it.
type IdleHolder struct {
	Node   string `json:"node"`
	GPU    string `json:"gpu"` // name of the device of the whole GPU
	Holder `json:",inline"`
}

// topIdle lists idle claims, longest first.
func (p *plugin) topIdle(ctx context.Context, o topOptions) error {
	f := filter{names: o.names}
	nothing := "No claim holds a GPU that it does not use."
	if !o.allNamespaces {
		f.namespace = p.namespace
		nothing = fmt.Sprintf("No claim of the namespace %s holds a GPU that it does not use.", f.namespace)
	}
	gpus, s, err := p.gpus(ctx, f)
	if err != nil {
		return err
	}
	var all []*IdleHolder
	for _, g := range gpus {
		for _, h := range g.Holders {
			if h.IdleSince != nil && (f.namespace == "" || h.Namespace == f.namespace) {
				all = append(all, &IdleHolder{g.place(), g.Name, h})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *IdleHolder) int { return a.IdleSince.Compare(b.IdleSince.Time) })
	t := table{header: []string{"NAMESPACE", "CLAIM", "PODS", "NODE", "GPU", "HELD FOR", "IDLE FOR"}}
	for _, h := range all {
		t.add(h.Namespace, h.Claim, joined(h.Pods), h.Node, h.GPU, age(h.Since), age(h.IdleSince))
	}
	err = printList(p, o.output, "IdleHolderList", all, nil, nothing, t)
	return errors.Join(err, s.Err())
}
