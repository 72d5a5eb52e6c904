// SPDX-License-Identifier: Apache-2.0

// Command cmd runs a fleet of simulated nodes until it is interrupted: see package fleet.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/test/fleet"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program without cleanup
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	kubeconfig string
	driver     string
	nodes      int
	profiles   []string
	cpu        string
	memory     string
}

func command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:           "fleet",
		Short:         "Simulate the nodes of a large cluster, without kubelets, until interrupted",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.run(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server; empty: as kubectl does")
	f.StringVar(&o.driver, "driver-name", fleet.Driver, "name of the driver, as in device classes")
	f.IntVar(&o.nodes, "nodes", 40, "number of nodes; they are called fleet-0001, fleet-0002, …")
	f.StringArrayVar(&o.profiles, "profile", []string{"dgx-h100"}, "PROFILE or PROFILE=WEIGHT: what nodes have, and "+
		"in which proportion; a name with a / is a file. Built in are "+strings.Join(simulator.Profiles(), ", "))
	f.StringVar(&o.cpu, "cpu", fleet.DefaultCPU, "what each node has for pods")
	f.StringVar(&o.memory, "memory", fleet.DefaultMemory, "what each node has for pods")
	return c
}

// members returns the nodes that the flags describe.
func (o options) members() ([]fleet.Node, error) {
	shares, err := fleet.ParseShares(o.profiles)
	cpu, cpuErr := quantity("cpu", o.cpu)
	memory, memoryErr := quantity("memory", o.memory)
	if err := errors.Join(err, cpuErr, memoryErr); err != nil {
		return nil, err
	}
	return fleet.Spread(o.nodes, shares, cpu, memory)
}

func quantity(flag, text string) (resource.Quantity, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() <= 0 {
		return q, fmt.Errorf("%s: want a quantity above 0 such as 64 or 512Gi, got %q", flag, text)
	}
	return q, nil
}

// run runs the nodes until ctx ends, and then removes them.
func (o options) run(ctx context.Context) error {
	nodes, err := o.members()
	if err != nil {
		return err
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	began := time.Now()
	fmt.Printf("starting %d nodes\n", len(nodes))
	c := fleet.Config{Driver: o.driver, Nodes: nodes}
	if c.Requests, c.OnDemand, err = requests(ctx, config); err != nil {
		return err
	}
	f, err := fleet.Start(ctx, config, c)
	if err != nil {
		return fmt.Errorf("start fleet: %w", err)
	}
	s := f.Size()
	fmt.Printf("%.1f s: %d nodes with %d GPUs are ready; they publish %d devices in %d slices\n",
		time.Since(began).Seconds(), s.Nodes, s.GPUs, s.Devices, s.Slices)
	fmt.Printf("look at them:  %skubectl get nodes -L %s\n", with(o.kubeconfig), fleet.ProfileLabel)
	fmt.Println("interrupt this program (Ctrl-C) to remove them")
	<-ctx.Done()
	fmt.Println("removing the nodes")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	return f.Stop(ctx)
}

// requests returns the ConfigMap in which the driver's controller names nodes. ok is false if the chart has none: then
// its plugins publish all possible partitions.
func requests(ctx context.Context, config *rest.Config) (name types.NamespacedName, ok bool, err error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return name, false, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	all, err := client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=gpu-dra-driver"})
	if err != nil {
		return name, false, fmt.Errorf("look for the driver's chart: %w", err)
	}
	for _, c := range all.Items {
		if strings.HasSuffix(c.Name, "-partition-requests") {
			return types.NamespacedName{Namespace: c.Namespace, Name: c.Name}, true, nil
		}
	}
	return name, false, nil
}

// with returns the prefix that makes a command line use the kubeconfig.
func with(kubeconfig string) string {
	if kubeconfig == "" {
		return ""
	}
	return "KUBECONFIG=" + kubeconfig + " "
}
